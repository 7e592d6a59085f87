"""Writes a complete SFT recipe for an imported model. No torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from colosseum.bundle import to_yaml
from colosseum.checkpoint.hf import facts
from colosseum.errors import RefusedInput

HEAD = """# @package _global_
# Supervised fine-tuning of {name}, imported from Hugging Face ({architecture}).
# Model and tokenizer are from the folder. Adjust batch sizes, learning rates, steps, GPUs and hardware below.
defaults:
  - /data: chat                    # set data.train=FILE: your conversations
  - /precision: bf16
  - /optimizer: adam-align
  - /hardware: h100-sxm
  - _self_

"""
SEQ_LENGTH = 4096
"""Or the model's own maximum, if that is smaller."""


def sft_recipe(checkpoint: Path) -> str:
    """The recipe of an imported checkpoint, as text.

    Raises:
        RefusedInput: it was not imported, or came without a tokenizer.
    """
    found = facts.read_facts(checkpoint)
    if found is None:
        raise RefusedInput(f"{checkpoint} was not imported: it has no {facts.NAME}")
    if found.tokenizer is None:
        raise RefusedInput(f"{checkpoint} has no tokenizer, which a recipe needs to train on text")
    folder = checkpoint.resolve()
    tokenizer = folder / str(found.tokenizer.path)
    name = re.sub(r"[^A-Za-z0-9._-]", "-", found.name).lstrip("._-")[:56] or "model"
    data: dict[str, Any] = {
        "name": f"{name}-sft",
        "engine": "mcore",
        "task": {"kind": "sft", "format": "chat", "template": template_of(tokenizer.parent)},
        "model": found.model.model_dump(mode="json"),
        "tokenizer": {"kind": found.tokenizer.kind, "path": str(tokenizer), "eod": found.tokenizer.eod},
        "batch": {
            "gbs": 128,
            "mbs": 1,
            "seq_length": min(SEQ_LENGTH, found.model.max_position_embeddings or SEQ_LENGTH),
        },
        "parallelism": {"tp": "auto", "pp": "auto", "vpp": 1, "cp": 1},
        "recompute": {"granularity": "auto"},
        "optimizer": {"lr": 5e-6, "min_lr": 5e-7, "warmup_steps": 10},
        "train": {"steps": 1000, "val_every_steps": 100},
        "checkpoint": {"from": str(folder), "load": ["weights"], "every_steps": 100, "keep_last": 2},
        "resources": {"gpus": 8, "gpus_per_node": 8, "time_limit": "24h"},
    }
    shown = "".join(c if c.isprintable() else "?" for c in found.name)
    return HEAD.format(name=shown, architecture=found.architecture) + to_yaml(data).decode()


def template_of(folder: Path) -> str:
    """The chat format: the folder's own template, if it has one."""
    from colosseum.data.align.hf_template import read_hf_template

    try:
        read_hf_template(folder / "tokenizer.json")
    except RefusedInput:
        return "chat_tokens"
    return "tokenizer"
