"""Figures of a run from its metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from colosseum.errors import RefusedInput
from colosseum.monitor.report import summarise
from colosseum.rundir import RunDir, append_line


def _train(run: RunDir, step: int, loss: float, attempt: int = 0) -> None:
    row = {"kind": "train", "step": step, "attempt": attempt, "loss": loss}
    append_line(run.metrics, row | {"consumed_tokens": step * 100, "tokens_per_s": float(step)})


def test_a_restarted_run_is_one_curve(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for step in range(1, 31):
        _train(run, step, 10.0 - step / 10)
    for step in range(21, 41):
        _train(run, step, 5.0, attempt=1)
    append_line(run.metrics, {"kind": "val", "step": 20, "attempt": 0, "loss": 7.5})
    append_line(run.metrics, {"kind": "val", "step": 40, "attempt": 1, "loss": 5.25})
    append_line(run.metrics, {"kind": "save", "step": 20, "attempt": 0, "time_s": 1.0, "bytes": 5})
    summary = summarise(run)
    assert (summary.first_step, summary.last_step) == (1, 40)
    assert (summary.first_loss, summary.last_loss, summary.last_validation_loss) == (9.9, 5.0, 5.25)
    assert summary.tokens == 4000
    assert summary.tokens_per_s == 20.5
    assert summary.saves == 1
    assert list(summary.training.steps) == list(range(1, 41))
    assert summary.training.values[19:22] == [8.0, 5.0, 5.0]


def test_a_run_without_steps_is_named(tmp_path: Path) -> None:
    with pytest.raises(RefusedInput, match=f"{tmp_path} has no training step"):
        summarise(RunDir(tmp_path))
