"""The watchdog in a process of its own: one that hangs, one that works slowly, one that ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from colosseum.rundir import AttemptDir
from colosseum.runtime.watchdog import EXIT_HANG

PROGRAM = """
import sys, time
from pathlib import Path
from colosseum.rundir import AttemptDir
from colosseum.runtime import watchdog
watchdog.GRACE_S = 0.1
dog = watchdog.Watchdog(AttemptDir(Path(sys.argv[1])), 3, 0.5, lambda: 40)
dog.start()
def collective_that_never_returns():
    time.sleep(60)
for step in range(1, 5):
    time.sleep(0.25)
    dog.beat(step, "training")
if sys.argv[2] == "hang":
    collective_that_never_returns()
dog.stop()
time.sleep(1)
"""


def run(folder: Path, how: str) -> int:
    return subprocess.run([sys.executable, "-c", PROGRAM, str(folder), how], timeout=50).returncode


def test_a_rank_that_stops_leaves_its_stacks_and_an_outcome(tmp_path: Path) -> None:
    assert run(tmp_path, "hang") == EXIT_HANG
    attempt = AttemptDir(tmp_path)
    outcome = attempt.read_outcome()
    assert outcome is not None
    assert outcome.kind == "hang"
    assert outcome.retry is True
    assert (outcome.step, outcome.last_saved_step, outcome.rank) == (4, 40, 3)
    assert "while training at step 4" in outcome.reason
    assert "collective_that_never_returns" in (attempt.stacks / "rank-00003.txt").read_text()


def test_slow_progress_and_a_finished_run_are_left_alone(tmp_path: Path) -> None:
    assert run(tmp_path, "end") == 0
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_does_not_keep_a_hung_rank_alive(tmp_path: Path) -> None:
    (tmp_path / "stacks").write_text("no folder can be made here")
    assert run(tmp_path, "hang") == EXIT_HANG
