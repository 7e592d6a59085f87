"""A rank that stops answering: every rank leaves its stacks, the attempt ends as hung and may be started again."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from tests.runtime import tiny
from tests.runtime.conftest import Place
from tests.runtime.test_runs import processes_of, wait_for_step


def test_a_stopped_rank_is_a_hang_with_the_stacks_of_the_others(place: Place, data: Path) -> None:
    recipe = tiny.on(data, dp=2, train={"steps": 2000}, stability={"hang_timeout": "5s"})
    process = place.start(place.recipe(recipe))
    run = wait_for_step(place, process, 2)
    (stuck,) = processes_of(run, 1)
    stuck.send(signal.SIGSTOP)
    ended = place.end(process)
    assert ended.code == 4
    assert ended.outcome["kind"] == "hang"
    assert ended.outcome["retry"] is True
    assert ended.outcome["rank"] == 0
    assert "no progress for 5 s while training" in ended.outcome["reason"]
    stacks = (run.attempt(0).stacks / "rank-00000.txt").read_text()
    assert "forward_backward" in stacks or "all_reduce" in stacks or "optimizer" in stacks
    left = subprocess.run(["kill", "-0", str(stuck.pid)], capture_output=True)
    assert left.returncode != 0, "the stopped rank is ended too"
