"""``scripts/bench-checkpoint``: what import, export and growth cost beside ``cp`` of the same bytes."""

from __future__ import annotations

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, FFN, VOCAB, SHARD = 4096, 14336, 32000, 5_000_000_000
LAYER = (2 * HIDDEN + HIDDEN * (HIDDEN + 2 * 1024) + HIDDEN * HIDDEN + 3 * HIDDEN * FFN) * 2
"""Bytes of a Llama layer in BF16."""
CONFIG = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5},
    **{"vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_theta": 500000.0},
}


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for i in range(layers):
        at = f"model.layers.{i}."
        found |= {f"{at}{n}.weight": (HIDDEN,) for n in ("input_layernorm", "post_attention_layernorm")}
        rows = {"self_attn.q": HIDDEN, "self_attn.k": 1024, "self_attn.v": 1024, "self_attn.o": HIDDEN}
        rows |= {"mlp.gate": FFN, "mlp.up": FFN}
        found |= {f"{at}{n}_proj.weight": (r, HIDDEN) for n, r in rows.items()}
        found[f"{at}mlp.down_proj.weight"] = (HIDDEN, FFN)
    return found | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def write_model(folder: Path, layers: int) -> int:
    """A Hugging Face folder of random bytes in BF16; its bytes."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
    block = np.random.default_rng(0).integers(0, 60, 1 << 24, dtype=np.uint8).tobytes()
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    for name, shape in shapes(layers).items():
        if sum(2 * int(np.prod(s)) for s in shards[-1].values()) > SHARD:
            shards.append({})
        shards[-1][name] = shape
    for number, shard in enumerate(shards):
        header, at = {}, 0
        for name, shape in shard.items():
            size = 2 * int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        with (folder / f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            while at > 0:
                at -= file.write(block[: min(at, len(block))])
    return sum(path.stat().st_size for path in folder.iterdir())


def forget(*roots: Path) -> None:
    """Everything on the disk, nothing in the page cache."""
    os.sync()
    for path in (p for root in roots for p in root.rglob("*") if p.is_file()):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def timed(words: list[Any], *sources: Path) -> tuple[float, int]:
    """Seconds until all is on the disk, and the process's largest resident size in bytes."""
    forget(*sources)
    start = time.monotonic()
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    os.sync()
    assert status == 0, words
    assert isinstance(usage, resource.struct_rusage)
    return time.monotonic() - start, usage.ru_maxrss * 1024


def main(words: list[str]) -> None:
    place = Path(words[1] if len(words) > 1 else ".").absolute()
    gigabytes = float(words[0]) if words else min(20.0, shutil.disk_usage(place).free / 6e9)
    layers = max(int((gigabytes * 1e9 - 4 * VOCAB * HIDDEN) // LAYER), 2)
    ours = [sys.executable, "-m", "colosseum", "checkpoint"]
    with tempfile.TemporaryDirectory(dir=place) as folder:
        root = Path(folder)
        size = write_model(root / "hf", layers)
        print(f"{size / 1e9:.1f} GB, {layers} layers")
        grown = layers + max(layers // 24, 1)
        jobs: dict[str, tuple[list[Any], Path, float]] = {
            "cp, first": (["cp", "-r", root / "hf", root / "copy"], root / "hf", 1.0),
            "import hf": ([*ours, "import", "hf", root / "hf", root / "ckpt"], root / "hf", 1.0),
            "export hf": ([*ours, "export", "hf", root / "ckpt", root / "out"], root / "ckpt", 1.0),
            "expand": (
                [*ours, "expand", root / "ckpt", root / "grown", "--layers", grown, "--no-probe"],
                root / "ckpt",
                grown / layers,
            ),
            "cp, last": (["cp", "-r", root / "hf", root / "copy"], root / "hf", 1.0),
        }
        rates = {}
        for name, (command, source, written) in jobs.items():
            seconds, memory = timed(command, source)
            rates[name] = size * written / seconds
            share = rates[name] / rates["cp, first"]
            rate = f"{rates[name] / 1e6:.0f} MB/s | {share:.0%} of cp"
            print(f"| {name} | {seconds:.1f} s | {rate} | {memory / 1e9:.2f} GB |")
            for path in (root / name for name in ("copy", "out", "grown")):
                shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
