"""The whole way on this machine: from a Hugging Face folder through a campaign's five stages to an exported one."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from colosseum.bundle import read_bundle
from colosseum.checkpoint.folders import is_committed, newest_committed, read_metadata
from colosseum.checkpoint.forward import logits
from colosseum.checkpoint.hf.exporting import export_hf
from colosseum.checkpoint.hf.importing import import_hf
from colosseum.checkpoint.torchdist import Tensors, read_index
from colosseum.data.byte_tokenizer import write_byte_tokenizer
from colosseum.data.demo_alignment import write_alignment
from colosseum.data.indexed import write_dataset
from colosseum.launch.campaigns.gate import pass_through
from colosseum.rundir import RunDir, checkpoint_folder, latest_rows
from tests.checkpoint.hf import models

COLOSSEUM = Path(sys.executable).parent / "colosseum"
LAYERS, STEPS = 2, 4
CONFIG = {
    **models.CONFIGS["nemotron"],
    **{"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"head_dim": 32, "vocab_size": 2048, "num_hidden_layers": LAYERS, "bos_token_id": None, "eos_token_id": 256},
    "tie_word_embeddings": False,
}
"""The debug model, as Hugging Face writes it."""
SPECIAL = ("<|endoftext|>", "<extra_id_0>", "<extra_id_1>", "<extra_id_2>")
STAGES = """
name: chain
stages:
  - name: base
    recipe: debug/cpt-4k-bf16
    overrides: [model.num_layers=2, "checkpoint.from=imported", "checkpoint.load=[weights]"]
  - {name: same, recipe: debug/cpt-16k-expand, overrides: [model.num_layers=2, "checkpoint.from=stage:base"]}
  - {name: grown, recipe: debug/cpt-16k-expand, overrides: [model.num_layers=4, "checkpoint.from=stage:base"]}
  - {name: fp8, recipe: debug/cpt-fp8, overrides: [model.num_layers=4, "checkpoint.from=stage:grown"]}
  - {name: sft, recipe: debug/sft, overrides: [model.num_layers=4]}
  - {name: dpo, recipe: debug/dpo, overrides: [model.num_layers=4, task.sft_weight=0]}
"""
"""Every stage of the shipped debug campaign, and one beside ``grown`` that has the layers of ``base``."""
WORDS = (f"train.steps={STEPS}", f"train.val_every_steps={STEPS}", "train.val_steps=1")
SMALL = ("batch.gbs=8", "batch.mbs=8", "batch.seq_length=128", "optimizer.warmup_steps=0")


def write_data(demo: Path) -> None:
    """Texts of few different tokens, chats, pairs, and a tokenizer of single bytes."""
    draw = random.Random(0)
    for name in ("languages", "english", "code"):
        with write_dataset(demo / name, 2048) as writer:
            for _ in range(100):
                writer.add_document([draw.randrange(64) for _ in range(400)])
    write_alignment(demo)
    write_byte_tokenizer(demo / "tokenizer.json", SPECIAL)


def write_model(folder: Path, demo: Path) -> None:
    """A Hugging Face folder with random weights."""
    folder.mkdir()
    draw = np.random.default_rng(1)
    weights = {
        name: (0.0 if "norm" in name else 0.02) * draw.standard_normal(shape, np.float32)
        for name, shape in models.shapes(CONFIG).items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    shutil.copy(demo / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[0]}))


def _losses(run: RunDir) -> list[float]:
    return [row["loss"] for row in latest_rows(run.metrics, "train")]


def test_from_hugging_face_through_five_stages_and_back(tmp_path: Path) -> None:
    demo = tmp_path / "data" / "demo"
    write_data(demo)
    write_model(tmp_path / "hf", demo)
    import_hf(tmp_path / "hf", tmp_path / "imported")
    (tmp_path / "chain.yaml").write_text(STAGES)
    command = [COLOSSEUM, "campaign", "run", "chain.yaml", "--cluster", "local", *SMALL, *WORDS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    file = next(tmp_path.glob("**/campaign.json"))
    stages = {s["name"]: RunDir(file.parent.parent / s["run"]) for s in json.loads(file.read_text())["stages"]}
    losses = {name: _losses(run) for name, run in stages.items()}
    for name, found in losses.items():
        assert found[-1] < found[0], name
    # Grown by two layers it begins where its parent would, and each stage where the one before ended.
    assert losses["grown"][0] == pytest.approx(losses["same"][0], abs=1e-5)
    assert losses["grown"][1] != losses["same"][1]  # the new layers learned, too
    assert losses["grown"][0] < losses["base"][0] - 0.1 and losses["fp8"][0] < losses["grown"][0]
    first = latest_rows(stages["dpo"].metrics, "train")[0]
    assert (first["loss"], first["accuracy"]) == (pytest.approx(0.693147, abs=1e-5), 0.5)
    assert json.loads(stages["dpo"].gate.read_text())["lineage"][0]["run"] == stages["base"].root.name

    # The exported folder is the last stage's model, and can be imported again.
    last = checkpoint_folder(stages["dpo"].checkpoints, STEPS)
    export_hf(last, tmp_path / "exported")
    import_hf(tmp_path / "exported", tmp_path / "again")
    model, ids = read_bundle(stages["dpo"].bundle).recipe.model, list(range(60, 90))
    before, after = (logits(Tensors(read_index(folder)), model, ids) for folder in (last, tmp_path / "again"))
    assert before.equal(after)
    assert (tmp_path / "exported" / "chat_template.jinja").is_file()

    _expansion_survives(stages["base"], stages["same"], stages["grown"])


def _expansion_survives(base: RunDir, same: RunDir, grown: RunDir) -> None:
    """The gate's expanded checkpoint is whole or not there, also after a kill, and of a whole source only."""
    gate = json.loads(grown.gate.read_text())
    assert gate["passed"] and gate["expands"] and not same.grown.exists()
    assert "expanded from 2 to 4 layers (new: 2, 4; init identity, optimizer drop)" in gate["notes"]
    folder = checkpoint_folder(grown.grown / "checkpoints", STEPS)
    origin = read_metadata(folder).origin
    assert origin is not None and origin.source == f"{base.root.name}@{STEPS}"

    # What a killed gate left is no checkpoint, and the gate is run again to its end.
    before = (folder / "colosseum.json").read_bytes()
    (folder / "colosseum.json").unlink()
    next(folder.glob("*.distcp")).write_bytes(b"half")
    assert newest_committed(grown.grown / "checkpoints") is None
    assert pass_through(grown).passed and (folder / "colosseum.json").read_bytes() == before
    written = folder.stat().st_mtime_ns
    assert pass_through(grown).passed and folder.stat().st_mtime_ns == written  # once is enough

    # A changed byte of the source is found, and nothing passes for a whole result.
    shutil.rmtree(grown.grown)
    source = next(checkpoint_folder(base.checkpoints, STEPS).glob("*.distcp"))
    data = bytearray(source.read_bytes())
    data[len(data) // 2] ^= 1
    source.write_bytes(data)
    verdict = pass_through(grown)
    assert "the checkpoint was not expanded" in verdict.faults[0] and not is_committed(folder)
