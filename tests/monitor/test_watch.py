"""Where a run stands, from files written as the runtime and the job script write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from colosseum.monitor.logs import Reader, log_files
from colosseum.monitor.watch import history, last_val_loss, run_status
from colosseum.rundir import CHECKPOINT_MARK, RunDir, append_line, checkpoint_folder


def _train(run: RunDir, attempt: int, steps: range, **fields: Any) -> None:
    for step in steps:
        row = {"kind": "train", "step": step, "attempt": attempt, "time_unix_s": 1000.0 + step, "loss": 9.0 - step}
        append_line(run.metrics, {**row, "step_time_s": 2.0, "mfu": None, **fields})


def _begin(run: RunDir, number: int, saved_step: int) -> None:
    folder = run.attempt(number)
    folder.root.mkdir(parents=True)
    env = {"attempt": number, "saved_step": saved_step, "job_id": "7", "restart": number, "nodes": "n[1-2]"}
    folder.env.write_text(json.dumps({**env, "time_unix_s": 500 + number}))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Attempt 0 trained 7 steps and was killed after a save of step 5; attempt 1 stopped, saved, at step 8."""
    run = RunDir(tmp_path / "20261201-000000-x-abcd")
    run.bundle.mkdir(parents=True)
    (run.bundle / "manifest.json").write_text('{"total_steps": 20}')
    (run.bundle / "plan.json").write_text('{"step_time_s": 1.6}')
    _begin(run, 0, 0)
    _train(run, 0, range(1, 8))
    mark = checkpoint_folder(run.checkpoints, 5) / CHECKPOINT_MARK
    mark.parent.mkdir(parents=True)
    mark.write_text("{}")
    checkpoint_folder(run.checkpoints, 7).mkdir()  # unfinished
    _begin(run, 1, 5)
    _train(run, 1, range(6, 9), mfu=0.25)
    run.attempt(1).write_outcome("saved", retry=True, step=8, last_saved_step=8, rank=0, reason="stopped on request")
    return run


def test_the_newest_attempt_tells_where_a_run_stands(run: RunDir) -> None:
    at = run_status(run)
    assert (at.step, at.total_steps, at.loss, at.mfu, at.saved_step) == (8, 20, 1.0, 0.25, 5)
    assert (at.step_time_s, at.predicted_step_time_s, at.left_s) == (2.0, 1.6, 24.0)
    assert at.heard_unix_s == 1008.0


def test_a_long_history_is_read_at_its_end_only(run: RunDir) -> None:
    _train(run, 2, range(9, 5000))
    with run.metrics.open("a") as file:
        file.write('{"kind": "train", "step": 5000, "att')  # torn
    assert run_status(run).step == 4999


def test_a_run_without_a_step_has_no_figures(tmp_path: Path) -> None:
    at = run_status(RunDir(tmp_path))
    assert (at.step, at.loss, at.left_s, at.saved_step, at.heard_unix_s) == (0, None, None, 0, None)


def test_history_counts_the_steps_each_attempt_lost(run: RunDir) -> None:
    first, second = history(run)
    assert (first.from_step, first.last_step, first.lost_steps, first.kind) == (0, 7, 2, None)
    assert (second.from_step, second.last_step, second.lost_steps, second.kind) == (5, 8, None, "saved")


def test_an_attempt_that_has_not_begun_says_nothing_of_lost_steps(run: RunDir) -> None:
    """The job script makes the folder first; it may also end there, for want of disk."""
    run.attempt(2).root.mkdir()
    assert [a.lost_steps for a in history(run)] == [2, None, None]
    _begin(run, 3, 6)
    assert [a.lost_steps for a in history(run)] == [2, 2, None, None]


def test_logs_are_followed_into_the_next_attempt(run: RunDir) -> None:
    run.logs.mkdir()
    job, rank = run.logs / "job-7.out", run.attempt(1).rank_log(0)
    job.write_text("one\ntwo\nthree\n")
    rank.write_text("step 6\n")
    reader = Reader(2)
    assert list(reader.new(log_files(run, 0, None))) == [(job, "two\nthree\n"), (rank, "step 6\n")]
    _begin(run, 2, 8)
    later = run.attempt(2).rank_log(0)
    later.write_text("a\nb\nc\n")
    with job.open("a") as file:
        file.write("four\n")
    assert list(reader.new(log_files(run, 0, None))) == [(job, "four\n"), (later, "a\nb\nc\n")]
    assert list(reader.new(log_files(run, 0, None))) == []
    assert log_files(run, 3, 1) == [job]


def test_the_newest_validation_counts(run: RunDir) -> None:
    assert last_val_loss(run) is None
    for step, loss in ((2, 3.0), (4, 2.5), (6, None)):
        append_line(run.metrics, {"kind": "val", "step": step, "attempt": 0, "loss": loss})
    assert last_val_loss(run) is None  # a loss that is not finite is null, and says so
    append_line(run.metrics, {"kind": "val", "step": 8, "attempt": 1, "loss": 2.25})
    with run.metrics.open("a") as file:
        file.write('{"kind":"val","step":9,"attempt":1,"lo\n')
    _train(run, 1, range(9, 12))
    assert last_val_loss(run) == 2.25
