"""SFT and DPO: the same losses in every layout, from the same checkpoint; what they learn; resumed bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from colosseum.recipe import rules
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, latest_rows
from tests.runtime import tiny, tiny_align
from tests.runtime.tiny_align import DPO, LAYOUTS, SFT
from tests.runtime.worlds import train_all

FIGURES = ("loss", "grad_norm", "trained_tokens", "margin", "reward_chosen", "logp_rejected", "kl", "consumed_tokens")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    tiny_align.write_data(folder)
    return folder


def figures(run: Path) -> list[float]:
    """Of the training steps and of the validation."""
    metrics = RunDir(run).metrics
    found = latest_rows(metrics, "train") + latest_rows(metrics, "val")
    return [row[key] for row in found for key in FIGURES if key in row]


def test_every_layout_computes_what_one_process_computes(rows: Path, tmp_path: Path) -> None:
    train_all({"start": tiny_align.aligned(tiny_align.on("one"), rows, SFT)}, tmp_path)
    runs: dict[str, Recipe] = {}
    for kind, task in (("sft", SFT), ("dpo", DPO)):
        for name in ("one", *LAYOUTS):
            recipe = tiny_align.aligned(tiny_align.on(name), rows, task)
            assert rules.faults(recipe) == []
            runs[f"{kind}-{name}"] = tiny.resumed(recipe, tmp_path / "start", 2)
    for reference in ("resident", "host"):
        recipe = tiny_align.aligned(tiny_align.on("dp2"), rows, {**DPO, "reference": reference})
        runs[f"dpo-dp2-{reference}"] = tiny.resumed(recipe, tmp_path / "start", 2)
    train_all(runs, tmp_path)
    for name in runs:
        expected = figures(tmp_path / f"{name[:3]}-one")
        assert len(expected) >= 5 * 3
        assert figures(tmp_path / name) == pytest.approx(expected, rel=2e-4, abs=2e-5), name


def test_runs_resume_bit_for_bit(rows: Path, tmp_path: Path) -> None:
    """Stopped at step 2 of 4 and started again in the same folder."""
    whole = {name: tiny_align.aligned(tiny_align.on("dp2"), rows, task) for name, task in (("sft", SFT), ("dpo", DPO))}
    train_all(whole, tmp_path)
    halves = {}
    for name, recipe in whole.items():
        full: dict[str, Any] = recipe.as_data()
        full["train"].update(steps=2)
        halves[f"{name}-again"] = Recipe.from_data(full)
    train_all(halves, tmp_path)
    train_all({f"{name}-again": recipe for name, recipe in whole.items()}, tmp_path)
    for name in whole:
        expected, found = (
            {
                row["step"]: [row[key] for key in FIGURES if key in row]
                for row in latest_rows(RunDir(run).metrics, "train")
            }
            for run in (tmp_path / name, tmp_path / f"{name}-again")
        )
        assert sorted(expected) == [1, 2, 3, 4]
        assert found == expected, name


def test_a_preference_is_learnt_and_held_out_pairs_are_told_apart(rows: Path, tmp_path: Path) -> None:
    recipe = tiny_align.aligned(tiny_align.on("one"), rows, DPO, train={"steps": 12, "val_every_steps": 12})
    train_all({"dpo": recipe}, tmp_path)
    metrics = RunDir(tmp_path / "dpo").metrics
    first = latest_rows(metrics, "train")[0]
    assert first["accuracy"] == 0.5, "policy and reference are the same: a tie"
    assert first["loss"] == pytest.approx(0.693147, abs=1e-5)
    assert latest_rows(metrics, "val")[0]["accuracy"] > 0.95


def test_a_save_under_param_gather_overlap_holds_every_ranks_new_weights(rows: Path, tmp_path: Path) -> None:
    """They reach the other ranks in the next forward pass: a run that takes the weights alone began with old ones."""
    recipe = tiny_align.aligned(tiny_align.on("dp2"), rows, SFT, train={"steps": 2, "val_every_steps": 2})
    assert recipe.overlap.param_gather is True
    train_all({"saved": recipe}, tmp_path)
    still = {"lr": 0.0, "min_lr": 0.0}
    again = tiny_align.aligned(
        tiny_align.on("one"), rows, SFT, train={"steps": 1, "val_every_steps": 1}, optimizer=still
    )
    train_all({"again": tiny.resumed(again, tmp_path / "saved", 2)}, tmp_path)
    losses = [latest_rows(RunDir(tmp_path / name).metrics, "val")[0]["loss"] for name in ("saved", "again")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
