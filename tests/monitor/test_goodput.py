"""Where the wall time of a run went, from records whose every second is known."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from colosseum.monitor.goodput import CAUSES, goodput_of
from colosseum.monitor.series import read_metrics
from colosseum.rundir import RunDir
from tests.monitor.made import MadeRun, killed_once

ROW = Path(__file__).resolve().parents[1] / "validation" / "h200_run_metrics.jsonl"


def test_every_second_has_one_cause(tmp_path: Path) -> None:
    found = goodput_of(killed_once(tmp_path / "run"))
    assert found.wall_s == pytest.approx(60)
    assert found.seconds == pytest.approx(
        {
            "queue": 10,
            "start": 8 + 5,  # 1010-1018 before the first step; 1042-1050 without the load
            "load": 3,
            "training": 2 + 3 * 1.9 + 2 + 2 * 1.9 + 1.6,  # steps 1-4 of attempt 0, 5-8 of attempt 1
            "data": 3 * 0.1 + 3 * 0.1,  # not of an attempt's first step
            "stragglers": 0.3,
            "recomputed": 6,  # steps 5-7 of attempt 0
            "restart": 3 + 6,
            "validation": 1,
            "save": 1,  # between the rows of steps 4 and 5: what is not the step
            "other": 1,
        }
    )
    assert set(found.seconds) == set(CAUSES)
    assert found.share == pytest.approx(15.1 / 60)


def test_a_restart_is_split(tmp_path: Path) -> None:
    (restart,) = goodput_of(killed_once(tmp_path / "run")).restarts
    assert (restart.attempt, restart.kind) == (1, "crash")
    assert (restart.noticed_s, restart.requeue_s, restart.start_s, restart.load_s) == (3, 6, 5, 3)
    assert restart.recomputed_s == 6
    assert restart.total_s == 1058 - 1033


def test_time_in_which_nobody_had_submitted_the_run_is_not_counted(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.submit(0)
    made.begin(0, 1)
    made.train(0, 1, 5)
    made.end(0, 6, "saved", 1)
    made.submit(5000)
    made.begin(1, 5010, saved_step=1)
    made.train(1, 2, 5020)
    made.end(1, 5020, "completed", 2)
    found = goodput_of(made.run)
    assert (found.stopped_s, found.seconds["queue"], found.wall_s) == (4994, 11, 26)


def test_rows_that_are_steps_apart(tmp_path: Path) -> None:
    """Only the last step's time is known then: what no validation or save explains is training."""
    made = MadeRun(tmp_path / "run")
    made.begin(0, 0)
    for step, at in ((10, 20), (20, 45), (30, 65)):
        made.train(0, step, at)
    made.row("val", 0, 20, 49, loss=1.0, samples=8, time_s=4.0)
    made.train(0, 40, 89)
    found = goodput_of(made.run).seconds
    assert found["validation"] == 0  # between 45 and 65 no time is left above ten steps of 2 s
    assert found["training"] + found["data"] == pytest.approx(2 + 25 + 20 + 24)


def test_a_run_without_attempts_or_rows(tmp_path: Path) -> None:
    assert goodput_of(RunDir(tmp_path)).share is None
    made = MadeRun(tmp_path / "run")
    made.begin(0, 10)
    made.end(0, 15, "config_error", 0)
    assert goodput_of(made.run).seconds["restart"] == 5


def test_a_rewind_is_recomputed(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin(0, 0)
    for at, step in enumerate((1, 2, 3, 4, 3, 4, 5), start=1):
        made.train(0, step, 2.0 * at, data_time_s=0.0)
    found = goodput_of(made.run).seconds
    assert (found["training"], found["recomputed"]) == (10, 4)


def test_damaged_lines_and_values_end_no_report(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    good = {"kind": "train", "step": 1, "attempt": 0, "time_unix_s": 1.0, "loss": 2.0}
    odd = [{**good, "step": 2, "loss": "x"}, {**good, "step": 3, "loss": [1]}, {**good, "step": 4, "loss": 10**400}]
    lines = [json.dumps(row) for row in (good, *odd)] + ["", "{", "[1]", '{"kind":"train"}', "[" * 5000, '{"step":5,"k']
    path.write_text("\n".join(lines))
    found = read_metrics(path)
    assert found.train["step"].tolist() == [1, 2, 3, 4]
    assert str(found.train["loss"].tolist()) == "[2.0, nan, nan, nan]"
    assert read_metrics(tmp_path / "none").train["step"].size == 0


def test_a_million_lines_are_read_in_seconds(tmp_path: Path) -> None:
    """CPU time, on a twentieth of them: the whole report has 10 s for a million on a quiet machine."""
    made = MadeRun(tmp_path / "run")
    made.begin(0, 0)
    row = json.loads(ROW.read_text().splitlines()[4]) | {"step": -1, "time_unix_s": -1}
    line = json.dumps(row, separators=(",", ":")).replace("-1", "%d") + "\n"
    made.run.metrics.write_text("".join(line % (step, step) for step in range(1, 50_001)))
    began = time.process_time()
    found = goodput_of(made.run)
    assert time.process_time() - began < 1.5
    assert found.wall_s == 50_000
