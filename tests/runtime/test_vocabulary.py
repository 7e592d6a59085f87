"""Rows that fill the vocabulary up: their number, which tp and make_vocab_size_divisible_by change, changes no loss."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from colosseum.recipe.schema import Recipe
from tests.runtime import tiny
from tests.runtime.test_layouts import FP32
from tests.runtime.worlds import train_all

STEPS, HALF = 4, 2


def padded(data: Path, unit: int, tp: int = 1, dp: int = 1, **model: float) -> Recipe:
    """512 tokens, the rows filled up to a multiple of ``unit * tp``; dp > 1: without the distributed optimizer."""
    sizes = {"num_layers": 2, "make_vocab_size_divisible_by": unit, **model}
    sections = {"train": {"steps": STEPS, "val_steps": 0}, "checkpoint": {"every_steps": HALF}, "batch": {"mbs": 4}}
    return tiny.on(data, tp, dp=dp, distributed=dp == 1, model=sizes, **sections)


def test_padding_changes_no_loss(data: Path, tmp_path: Path) -> None:
    first = {
        "none": padded(data, 1),
        "to-640": padded(data, 320),
        "plain": padded(data, 1, dp=2),
        "even": padded(data, 1024, init_method_std=1e-6),
    }
    expected = train_all(first, tmp_path)
    # Weights near 0: every token is as likely, and there are 512 of them, not 1,024.
    assert expected["even"][1] == pytest.approx(math.log(512), abs=1e-4)
    runs = {
        "none-to-640": ("none", padded(data, 320)),
        "640-to-none": ("to-640", padded(data, 1)),
        "none-to-768": ("none", padded(data, 384, tp=2)),  # the second rank holds 128 tokens and 256 empty rows
        "640-to-1024": ("to-640", padded(data, 512, tp=2)),  # the second rank holds empty rows only
        "plain-to-640": ("plain", padded(data, 320, dp=2)),
    }
    found = train_all({n: tiny.resumed(r, tmp_path / source, HALF) for n, (source, r) in runs.items()}, tmp_path)
    for name, (source, _) in runs.items():
        assert sorted(found[name]) == list(range(HALF + 1, STEPS + 1))
        assert max(abs(found[name][step] - expected[source][step]) for step in found[name]) <= FP32, name
