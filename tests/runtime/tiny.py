"""A recipe and data so small that a step takes a fraction of a second on any layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from colosseum.data.indexed import write_dataset
from colosseum.recipe.load import load
from colosseum.recipe.schema import Recipe
from colosseum.rundir import checkpoint_folder

VOCAB = 512
GBS = 8
STEPS = 8
HALF = STEPS // 2


def write_data(folder: Path) -> None:
    """Two sources of counting sequences, which a model learns in a few steps."""
    rng = np.random.default_rng(7)
    for name, stride in (("a", 1), ("b", 3)):
        with write_dataset(folder / name, VOCAB, force=True) as writer:
            for _ in range(200):
                start, length = int(rng.integers(0, 100)), int(rng.integers(20, 200))
                writer.add_document([*((start + i * stride) % 500 for i in range(length)), VOCAB - 1])


def recipe(data: Path, **sections: dict[str, Any]) -> Recipe:
    """A tiny model on one process; each section given is laid over it."""
    words = ["cluster=local", "model.num_layers=8", "model.hidden_size=64", "model.ffn_hidden_size=128"]
    words += ["model.num_attention_heads=8", "model.num_query_groups=4", "model.kv_channels=8", "tokenizer=token-ids"]
    words += [f"model.vocab_size={VOCAB}", f"batch.gbs={GBS}", "batch.mbs=1", "batch.seq_length=64"]
    words += [f"train.steps={STEPS}", f"train.val_every_steps={HALF}", "train.val_steps=1", "optimizer.warmup_steps=2"]
    words += [f"checkpoint.every_steps={HALF}", "checkpoint.keep_last=null", "data.split='90,10,0'"]
    full = load("debug/cpt-4k-bf16", words).recipe.as_data()
    full["data"]["blend"] = [
        {"path": str(data / "a"), "weight": 0.7, "tags": []},
        {"path": str(data / "b"), "weight": 0.3, "tags": []},
    ]
    full["overlap"].update(p2p=False, batch_p2p=True, grad_reduce=False, param_gather=False, tp_comm=False)
    full["parallelism"].update(sequence_parallel=False)
    full["optimizer"].update(distributed=False)
    full["precision"].update(grad_reduce_dtype="fp32")
    for section, values in sections.items():
        full[section].update(values)
    return Recipe.from_data(full)


def on(data: Path, tp: int = 1, pp: int = 1, vpp: int = 1, cp: int = 1, dp: int = 1, **more: Any) -> Recipe:
    """The recipe under a layout.

    Args:
        more: sp, distributed, overlap, dtype, tied, recompute, first, last, and whole sections.
    """
    sections: dict[str, dict[str, Any]] = {
        "parallelism": {"tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "sequence_parallel": more.pop("sp", False)},
        "resources": {"gpus": tp * pp * cp * dp, "gpus_per_node": 8},
        "optimizer": {"distributed": more.pop("distributed", False)},
        "overlap": {"p2p": vpp > 1, "batch_p2p": vpp == 1},
        "precision": {"dtype": more.pop("dtype", "fp32")},
        "model": {"tied_embeddings": more.pop("tied", False)},
    }
    sections["parallelism"]["first_stage_layers"] = more.pop("first", None)
    sections["parallelism"]["last_stage_layers"] = more.pop("last", None)
    if more.pop("overlap", False):
        sections["overlap"].update(grad_reduce=True, param_gather=sections["optimizer"]["distributed"])
    sections["recompute"] = more.pop("recompute", {})
    for name, values in more.items():
        sections.setdefault(name, {}).update(values)
    return recipe(data, **sections)


def resumed(recipe: Recipe, run: Path, step: int) -> Recipe:
    """The recipe, going on from a checkpoint of another run."""
    data = recipe.as_data()
    data["checkpoint"]["from"] = str(checkpoint_folder(run / "checkpoints", step))
    return Recipe.from_data(data)
