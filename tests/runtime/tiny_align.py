"""Rows and pairs that a tiny model learns in a few steps, and a tokenizer of single bytes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from colosseum.data.byte_tokenizer import write_byte_tokenizer
from colosseum.recipe.schema import Recipe
from tests.runtime import tiny

EOD = "<|endoftext|>"
SPECIAL = ("<extra_id_0>", "<extra_id_1>", "<extra_id_2>", EOD)
ROWS = {"train": 48, "validation": 16}
"""A reference policy reads them all, whatever the number of steps."""


def write_data(folder: Path) -> None:
    """SFT: the answer repeats the question's letters. DPO: the chosen answer is of early letters."""
    folder.mkdir(parents=True, exist_ok=True)
    write_byte_tokenizer(folder / "tokenizer.json", SPECIAL)
    chance = random.Random(5)

    def letters(of: str, most: int) -> str:
        return "".join(chance.choices(of, k=chance.randint(3, most)))

    for name, count in ROWS.items():
        rows, pairs = [], []
        for _ in range(count):
            prompt = letters("abcdefgh", 12)
            rows.append({"prompt": prompt, "response": prompt[:3] * chance.randint(1, 8)})
            pairs.append({"prompt": prompt, "chosen": letters("abcdefghijklm", 20)})
            pairs[-1]["rejected"] = letters("nopqrstuvwxyz", 20)
            pairs[-1] |= {"chosen_reward": len(prompt) / 4, "rejected_reward": 0.5}
        (folder / f"sft-{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f"dpo-{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))


def aligned(recipe: Recipe, folder: Path, task: dict[str, Any], **sections: dict[str, Any]) -> Recipe:
    """The recipe (``tiny.on``) with another task, its data and a vocabulary that is padded."""
    full = recipe.as_data()
    full["task"] = task
    full["data"].update(blend=[], split="99,1,0")
    for name in ("train", "validation"):
        full["data"][name] = str(folder / f"{task['kind']}-{name}.jsonl")
    full["tokenizer"] = {"kind": "tokenizer_json", "path": str(folder / "tokenizer.json"), "eod": EOD}
    full["model"].update(num_layers=4, vocab_size=261, make_vocab_size_divisible_by=8)
    full["train"].update(steps=4, val_every_steps=4, val_steps=2)
    full["optimizer"].update(warmup_steps=0, lr=1e-3, lr_schedule="constant")
    full["checkpoint"].update(every_steps=2, load=["weights"])
    for name, values in sections.items():
        full[name].update(values)
    return Recipe.from_data(full)


SFT = {"kind": "sft", "format": "prompt_response"}
DPO = {"kind": "dpo", "beta": 0.2, "reference": "precomputed"}
LAYOUTS = {
    "mbs4": {"batch": {"mbs": 4}},
    "tp2-sp": {"tp": 2, "sp": True},
    "pp2": {"pp": 2},
    "pp2-vpp2": {"pp": 2, "vpp": 2},
    "cp2": {"cp": 2, "distributed": True},
    "dp2": {"dp": 2, "distributed": True, "overlap": True},
}


def on(name: str) -> Recipe:
    """A layout of ``LAYOUTS``, or one process."""
    return tiny.on(Path("/nowhere"), **LAYOUTS.get(name, {}))  # type: ignore[arg-type]
