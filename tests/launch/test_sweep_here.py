"""A sweep worked through on this machine. The ranks run small programs instead of training."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from colosseum.bundle import read_bundle
from colosseum.launch.local.processes import LocalScheduler
from colosseum.launch.trials.sweep import Point, Sweep, run_here
from colosseum.monitor.watch import last_attempt
from colosseum.rundir import RunDir
from tests.cli.conftest import program_bundle

GOOD = "import time; time.sleep(0.3)"
PATIENT = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
Path("ready").touch()
time.sleep(600)
"""


def _sweep(base: Path, program: str, count: int, at_once: int) -> Sweep:
    """Run folders of a sweep, each with its own program."""
    points = []
    for index in range(count):
        run = RunDir(base / "runs" / f"run-{index}")
        run.root.mkdir(parents=True)
        program_bundle(run.bundle, program, ranks=1, base=base)
        points.append(Point(values={"optimizer.lr": str(index)}, run=run.root.name, recipe_hash=str(index)))
    return Sweep(root=base / "runs" / "sweep-program", name="program", points=tuple(points), at_once=at_once)


@pytest.mark.parametrize("at_once", [1, 2])
def test_so_many_points_run_at_a_time_and_what_is_complete_is_not_run_again(tmp_path: Path, at_once: int) -> None:
    sweep = _sweep(tmp_path, GOOD, 3, at_once)
    said: list[str] = []
    live: list[int] = []

    class Watched(LocalScheduler):
        def check(self, run: RunDir, recipe: object) -> str:
            live.append(sum(child.poll() is None for child in self._children.values()))
            return super().check(run, read_bundle(run.bundle).recipe)

    assert run_here(sweep, Watched(), said.append) is False
    assert max(live) < at_once
    assert all(sweep.run_of(point).is_complete() for point in sweep.points)
    assert [line.partition(":")[0] for line in said] == [f"point {i}, optimizer.lr={i}" for i in range(3)]
    assert run_here(sweep, LocalScheduler(), said.append) is False
    assert len(said) == 3


def test_ctrl_c_saves_what_runs_and_starts_no_more(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path, PATIENT, 3, 2)
    first, second, third = (sweep.run_of(point) for point in sweep.points)

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while not all((run.root / "ready").exists() for run in (first, second)):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    said: list[str] = []
    threading.Thread(target=interrupt, daemon=True).start()
    assert run_here(sweep, LocalScheduler(), said.append) is True
    assert [getattr(last_attempt(run), "kind", None) for run in (first, second, third)] == ["saved", "saved", None]
    assert "stop requested" in said[-1]
