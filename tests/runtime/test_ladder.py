"""The stability ladder in real runs: batches whose labels are wrong are skipped, and a run goes back from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, latest_rows, read_lines
from tests.runtime import tiny, worlds

STEPS, SAVE = 60, 25
SKIPPED, TOO_MANY = [35, 36, 37], [35, 36, 37, 38]
ONCE = {"max_rewinds": 1}


def recipe(data: Path, steps: int = STEPS, **stability: Any) -> Recipe:
    return tiny.recipe(
        data,
        model={"num_layers": 2},
        train={"steps": steps, "val_every_steps": STEPS, "val_steps": 2},
        optimizer={"lr_schedule": "constant", "lr": 3e-3},
        checkpoint={"every_steps": SAVE, "keep_last": None},
        stability=stability,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ladder")
    tiny.write_data(folder)
    some = [
        ("skips", recipe(folder)),
        ("off", recipe(folder, mode="off")),
        ("rewinds", recipe(folder, **ONCE)),
        ("resumed", recipe(folder, steps=50, **ONCE)),
        ("resumed", recipe(folder, **ONCE)),
    ]
    poison = {"skips": SKIPPED, "off": SKIPPED, "rewinds": TOO_MANY, "resumed": TOO_MANY}
    worlds.train_in_order(some, folder, poison)
    return folder


def steps_of(run: Path, kind: str) -> list[int]:
    return [row["step"] for row in read_lines(RunDir(run).events) if row["kind"] == kind]


def validation_loss(run: Path) -> float:
    return float(latest_rows(RunDir(run).metrics, "val")[-1]["loss"])


def test_wrong_batches_change_no_weights(runs: Path) -> None:
    assert steps_of(runs / "skips", "batch_skipped") == SKIPPED
    assert steps_of(runs / "skips", "rewind") == []
    rows = {row["step"]: row for row in latest_rows(RunDir(runs / "skips").metrics, "train")}
    assert [step for step, row in rows.items() if row["skipped"]] == SKIPPED
    assert validation_loss(runs / "skips") < validation_loss(runs / "off")
    # What the same batches do to a run that trains on them shows in the step after them.
    next_norms = [latest_rows(RunDir(runs / name).metrics, "train")[37]["grad_norm"] for name in ("skips", "off")]
    assert next_norms[1] > 2 * next_norms[0]


def test_one_wrong_batch_too_many_rewinds_and_lowers_the_rate(runs: Path) -> None:
    run = RunDir(runs / "rewinds")
    assert steps_of(run.root, "rewind") == [38]
    # The second time the same four batches come, there is no rewind left: the fourth is trained on.
    assert steps_of(run.root, "batch_skipped") == 2 * SKIPPED
    written = [row for row in read_lines(run.metrics) if row["kind"] == "train"]
    assert [row["step"] for row in written] == [*range(1, 39), *range(SAVE + 1, STEPS + 1)]
    full = {row["lr"] for row in written[10:38]}
    lower = {row["lr"] for row in written[38:]}
    assert [2 * rate for rate in lower] == list(full)
    proposals = [row for row in read_lines(run.events) if row["kind"] == "loss_spike" and "rewinds" in row]
    assert [(row["step"], row["skips"], row["rewinds"]) for row in proposals] == [(38, 3, 1)]


def test_a_resumed_run_remembers_what_it_skipped_and_where_it_went_back(runs: Path) -> None:
    assert worlds.losses(runs / "resumed") == worlds.losses(runs / "rewinds")
    assert steps_of(runs / "resumed", "rewind") == [38]
