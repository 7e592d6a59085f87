"""Masked tokens: a step's loss is the sum over its counted tokens divided by their number, in every layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, latest_rows
from tests.runtime import tiny
from tests.runtime.worlds import train_all


def masked(recipe: Recipe) -> Recipe:
    full = recipe.as_data()
    full["data"]["eod_mask_loss"] = True
    full["optimizer"]["warmup_steps"] = 1
    full["model"]["num_layers"] = 4
    full["train"].update(steps=2, val_every_steps=2, val_steps=2)
    full["checkpoint"].update(every_steps=1, load=["weights"])
    return Recipe.from_data(full)


def test_loss_and_gradient_norm_do_not_depend_on_how_a_step_is_cut(data: Path, tmp_path: Path) -> None:
    train_all({"start": masked(tiny.on(data))}, tmp_path)
    runs = {f"mbs{mbs}": tiny.on(data, batch={"mbs": mbs}) for mbs in (1, 2, 4)}
    runs |= {
        "dp2-distributed-overlap": tiny.on(data, dp=2, distributed=True, overlap=True),
        "cp2": tiny.on(data, cp=2, distributed=True),
        "pp2-vpp2": tiny.on(data, pp=2, vpp=2),
        "tp2-sp": tiny.on(data, tp=2, sp=True),
    }
    train_all({name: tiny.resumed(masked(run), tmp_path / "start", 1) for name, run in runs.items()}, tmp_path)
    found = {}
    for name in runs:
        rows = latest_rows(RunDir(tmp_path / name).metrics, "train")
        val = latest_rows(RunDir(tmp_path / name).metrics, "val")
        found[name] = [row[key] for row in rows for key in ("loss", "grad_norm")] + [val[0]["loss"]]
    for name, figures in found.items():
        assert figures == pytest.approx(found["mbs1"], rel=1e-5), name
