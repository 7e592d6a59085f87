"""The figures that tests hold the runtime against, computed by transformers in an environment of its own.

    python3 -m venv E && E/bin/pip install torch transformers safetensors
    E/bin/python tests/checkpoint/hf/oracle.py make              # writes figures/NAME.npz
    E/bin/python tests/checkpoint/hf/oracle.py check NAME DIR    # an exported folder gives the same figures

Figures of 2026-12-02: transformers 5.24.0, torch 2.13.0.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import models
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FIGURES = Path(__file__).parent / "figures"


def figures(folder: Path) -> dict[str, Any]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.tensor([models.TOKENS])
    with torch.no_grad():
        logits = model(ids).logits[0, list(models.SHOWN)]
        new = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=models.NEW,
            min_new_tokens=models.NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return {"logits": logits.numpy(), "generated": new[0, ids.size(1) :].numpy()}


def main(words: list[str]) -> None:
    if words[0] == "make":
        for name in models.CONFIGS:
            with tempfile.TemporaryDirectory() as folder:
                np.savez(FIGURES / f"{name}.npz", **figures(models.write(Path(folder) / name, name)))
        return
    _, name, folder = words
    found, kept = figures(Path(folder)), np.load(FIGURES / f"{name}.npz")
    assert np.array_equal(found["logits"], kept["logits"]), np.abs(found["logits"] - kept["logits"]).max()
    assert np.array_equal(found["generated"], kept["generated"])
    assert AutoTokenizer.from_pretrained(folder)("w7 </s> w8")["input_ids"] == [7, 1, 8]
    print(f"{name}: the exported folder gives the same logits and the same {models.NEW} tokens")


if __name__ == "__main__":
    main(sys.argv[1:])
