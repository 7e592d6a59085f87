"""Loads that change no loss: other padding rows, the other kind of optimizer, other layouts of a tied model.

Those of one rank run first, in order: a run may go on from one that stands before it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from colosseum.recipe.schema import Recipe
from tests.runtime import tiny
from tests.runtime.test_layouts import BF16, FP32
from tests.runtime.worlds import train_all

STEPS, HALF = 4, 2
Runs = dict[str, Recipe]
Losses = dict[str, dict[int, float]]


def small(data: Path, *layout: int, model: dict[str, Any] | None = None, **more: Any) -> Recipe:
    sections = {"train": {"steps": STEPS, "val_steps": 0}, "checkpoint": {"every_steps": HALF}, "batch": {"mbs": 4}}
    return tiny.on(data, *layout, model={"num_layers": 2, **(model or {})}, **sections, **more)


def padded(data: Path, unit: int, tp: int = 1, dp: int = 1, **model: float) -> Recipe:
    """512 tokens, the rows filled up to a multiple of ``unit * tp``; dp > 1: without the distributed optimizer."""
    sizes = {"make_vocab_size_divisible_by": unit, **model}
    return small(data, tp, 1, 1, 1, dp, distributed=dp == 1, model=sizes)


def begun(data: Path) -> Runs:
    learned = {"position_embedding_type": "learned_absolute"}
    runs = {
        "none": padded(data, 1),
        "to-640": padded(data, 320),
        "rows-plain": padded(data, 1, dp=2),
        "even": padded(data, 1024, init_method_std=1e-6),
        "tied-pp2": small(data, 1, 2, tied=True, model=learned),
    }
    for dtype in ("fp32", "bf16"):
        runs[f"{dtype}-plain"] = small(data, 1, 1, 1, 1, 2, dtype=dtype)
        runs[f"{dtype}-sharded"] = small(data, 1, 1, 1, 1, 2, dtype=dtype, distributed=True)
        runs[f"{dtype}-sharded-tp2"] = small(data, 2, dtype=dtype, distributed=True)
    return runs


def resumed(data: Path) -> dict[str, tuple[str, Recipe]]:
    """From which run, and as what."""
    learned = {"position_embedding_type": "learned_absolute"}
    runs = {
        "none-to-640": ("none", padded(data, 320)),
        "640-to-none": ("to-640", padded(data, 1)),
        "none-to-768": ("none", padded(data, 384, tp=2)),  # the second rank holds 128 tokens and 256 empty rows
        "640-to-1024": ("to-640", padded(data, 512, tp=2)),  # the second rank holds empty rows only
        "rows-plain-to-640": ("rows-plain", padded(data, 320, dp=2)),
        "tied-pp2-again": ("tied-pp2", small(data, 1, 2, tied=True, model=learned)),
        "tied-pp2-to-tp2": ("tied-pp2", small(data, 2, tied=True, model=learned)),
        "tied-pp2-to-dp2": ("tied-pp2", small(data, 1, 1, 1, 1, 2, tied=True, model=learned)),
    }
    for dtype in ("fp32", "bf16"):
        plain, sharded = (begun(data)[f"{dtype}-{kind}"] for kind in ("plain", "sharded"))
        tp2 = begun(data)[f"{dtype}-sharded-tp2"]
        runs[f"{dtype}-plain-to-sharded"] = (f"{dtype}-plain", sharded)
        runs[f"{dtype}-sharded-to-plain"] = (f"{dtype}-sharded", plain)
        runs[f"{dtype}-plain-to-sharded-tp2"] = (f"{dtype}-plain", tp2)
        runs[f"{dtype}-sharded-tp2-to-plain"] = (f"{dtype}-sharded-tp2", plain)
    return runs


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Losses:
    folder = tmp_path_factory.mktemp("reloading")
    later = {name: tiny.resumed(recipe, folder / source, HALF) for name, (source, recipe) in resumed(data).items()}
    return train_all(begun(data) | later, folder)


def test_weights_near_0_make_every_token_as_likely(trained: Losses) -> None:
    """There are 512 of them, not 1,024."""
    assert trained["even"][1] == pytest.approx(math.log(512), abs=1e-4)


def test_no_load_changes_a_loss(data: Path, trained: Losses) -> None:
    wrong = {}
    for name, (source, recipe) in resumed(data).items():
        found, expected = trained[name], trained[source]
        assert sorted(found) == list(range(HALF + 1, STEPS + 1)), name
        tolerance = BF16 if recipe.precision.dtype == "bf16" and recipe.parallelism.tp == 2 else FP32
        worst = max(abs(found[step] - expected[step]) for step in found)
        if not worst <= tolerance:
            wrong[name] = worst
    assert wrong == {}
