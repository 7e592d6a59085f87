"""Ranks started by torchrun, typed in a run folder: no launcher of ours took it or began an attempt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from colosseum import owner
from colosseum.launch.local.run_processes import processes_of
from colosseum.rundir import RunDir, read_lines
from tests.runtime import tiny
from tests.runtime.conftest import COLOSSEUM, TIMEOUT_S, Place

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "colosseum.runtime", "bundle")


def test_torchrun_by_hand_owns_the_run(place: Place, data: Path) -> None:
    recipe = place.recipe(tiny.on(data, dp=2, train={"steps": 12}, model={"num_layers": 2}))
    run = RunDir(place.folder / "mine")
    made = [COLOSSEUM, "train", "cpt", recipe, "--dry-run", "--out", str(run.bundle)]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    run.begin_attempt_here()[1].write_outcome("crash", retry=True, step=0, last_saved_step=0, rank=0, reason="before")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    with subprocess.Popen([sys.executable, *TORCHRUN], cwd=run.root, env=env, stderr=subprocess.DEVNULL) as first:
        deadline = time.monotonic() + 120
        while not list(read_lines(run.metrics, holding=b'"train"')):
            assert time.monotonic() < deadline and first.poll() is None
            time.sleep(0.05)
        _, holder = owner.newest(run.root)
        assert holder is not None and [p.pid for p in processes_of(run)] == [holder.pid]
        os.kill(holder.pid, signal.SIGSTOP)  # or it would be complete before the second has begun
        try:
            second = subprocess.run(
                [sys.executable, *TORCHRUN], cwd=run.root, env=env, capture_output=True, text=True, timeout=120
            )
        finally:
            os.kill(holder.pid, signal.SIGCONT)
        assert second.returncode != 0
        assert f"mine belongs to process {holder.pid} on {holder.host}: it is running" in second.stderr
        assert first.wait(timeout=TIMEOUT_S) == 0
    assert {(row["attempt"], row["step"]) for row in read_lines(run.metrics, holding=b'"train"')} == {
        (1, step) for step in range(1, 13)
    }
    outcome = run.attempt(1).read_outcome()
    assert outcome is not None and (outcome.kind, outcome.step) == ("completed", 12)
    again = subprocess.run(
        [sys.executable, *TORCHRUN], cwd=run.root, env=env, capture_output=True, text=True, timeout=120
    )
    assert again.returncode == 0 and "mine is complete: nothing to do" in again.stderr
    assert run.attempt_numbers() == [0, 1]
