"""What the job script does when a run is stopped, killed or fails: real Slurm, ranks that only pretend to train.

The drills wait for Slurm most of the time, so all of them run at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from colosseum.launch.runs import control
from colosseum.launch.runs.jobs import Job
from colosseum.monitor.watch import history
from colosseum.rundir import RunDir, saved_steps
from tests.slurm.conftest import DevSlurm
from tests.slurm.runs import batch_shell, log, losses, stand_in_run, submit, until_begun, until_ended, until_step
from tests.slurm.stand_in import curve
from tests.traps import trapped

Drill = tuple[RunDir, Job]


def _asked_to_requeue(slurm: DevSlurm, runs: Path) -> Drill:
    run = stand_in_run(runs, "asked")
    submit(run)
    until_step(run, 7)
    assert control.requeue(run, print).submission is None
    until_step(run, 12, attempt=1)
    return run, until_ended(run)


def _requeued_by_slurm(slurm: DevSlurm, runs: Path) -> Drill:
    run = stand_in_run(runs, "requeued")
    job = submit(run)
    until_step(run, 7)
    slurm.run("scontrol", "requeue", job)
    until_step(run, 12, attempt=1)
    return run, until_ended(run)


def _rank_killed(slurm: DevSlurm, runs: Path) -> Drill:
    run = stand_in_run(runs, "killed", fault="crash 7 1 0")
    submit(run)
    until_step(run, 12, attempt=1)
    return run, until_ended(run)


def _batch_shell_killed(slurm: DevSlurm, runs: Path) -> Drill:
    run = stand_in_run(runs, "shell")
    submit(run)
    until_step(run, 7)
    os.kill(batch_shell(run), signal.SIGKILL)
    assert until_ended(run).word == "stopped"  # Slurm ends the ranks gently: they save
    assert control.requeue(run, print).submission is not None
    return run, until_ended(run)


def _cancelled(slurm: DevSlurm, runs: Path) -> Drill:
    run = stand_in_run(runs, "cancelled")
    submit(run)
    until_step(run, 7)
    control.cancel(run, print)
    assert until_ended(run).word == "cancelled"
    assert control.requeue(run, print).submission is not None
    return run, until_ended(run)


def _numeric_error(slurm: DevSlurm, runs: Path) -> Drill:
    run = stand_in_run(runs, "nan", fault="numeric_error 7 1")
    submit(run)
    return run, until_ended(run)


def _crash_loop(slurm: DevSlurm, runs: Path) -> Drill:
    run = stand_in_run(runs, "loop", "cluster.slurm.max_restarts_without_progress=1", fault="crash 3 0")
    submit(run)
    return run, until_ended(run)


def _shakedown(slurm: DevSlurm, runs: Path) -> Drill:
    run = stand_in_run(runs, "shaken", stop_after_step=6)
    submit(run)
    return run, until_ended(run)


def _foreign_shakedown(slurm: DevSlurm, runs: Path) -> Drill:
    run = stand_in_run(runs, "foreign-shaken", stop_after_step=6, foreign=True)
    submit(run)
    return run, until_ended(run)


def _deaf(slurm: DevSlurm, runs: Path) -> Drill:
    run = stand_in_run(runs, "deaf", "resources.time_limit=1m", fault="hang 38 0 0")
    (run.root / "deaf").touch()
    submit(run)
    until_step(run, 7)
    assert control.requeue(run, print).submission is None
    return run, until_ended(run)


def _followed(slurm: DevSlurm, runs: Path) -> Drill:
    run = stand_in_run(runs, "followed")
    submit(run)
    until_step(run, 2)
    command = [Path(sys.executable).parent / "colosseum", "jobs", "logs", "-f", "--rank", "1", run.root]
    done = subprocess.run(command, env=slurm.env, capture_output=True, text=True, timeout=300)
    (run.root / "followed").write_text(done.stdout)
    return run, until_ended(run)


def _without_requeue(slurm: DevSlurm, runs: Path) -> Drill:
    run = stand_in_run(runs, "without-requeue", "cluster.slurm.requeue=false")
    submit(run)
    until_step(run, 7)
    assert control.requeue(run, print).submission is None
    return run, until_ended(run)


DRILLS: dict[str, Callable[[DevSlurm, Path], Drill]] = {
    "asked to requeue": _asked_to_requeue,
    "requeued by Slurm": _requeued_by_slurm,
    "rank killed": _rank_killed,
    "batch shell killed": _batch_shell_killed,
    "cancelled": _cancelled,
    "numeric error": _numeric_error,
    "crash loop": _crash_loop,
    "shakedown": _shakedown,
    "foreign shakedown": _foreign_shakedown,
    "deaf": _deaf,
    "followed": _followed,
    "no requeue": _without_requeue,
}


@pytest.fixture(scope="module")
def drills(slurm: DevSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Drill]]]:
    runs = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(DRILLS)) as pool:
        for name, value in slurm.env.items():
            patch.setenv(name, value)
        yield {name: pool.submit(drill, slurm, runs) for name, drill in DRILLS.items()}


@pytest.mark.parametrize(
    "name",
    [
        *("asked to requeue", "requeued by Slurm", "rank killed", "batch shell killed", "cancelled"),
        *("shakedown", "foreign shakedown"),
    ],
)
def test_slurm_run_ends_as_if_nothing_had_happened(drills: dict[str, Future[Drill]], name: str) -> None:
    run, job = drills[name].result()
    assert job.word == "complete", log(run)
    assert trapped(run.root) == []
    assert losses(run) == curve()
    first, second = history(run)
    assert second.from_step >= 5  # never from scratch
    assert first.lost_steps is not None
    assert first.lost_steps <= 7  # a save every 5 steps, and the steps until Slurm acts
    if name not in ("requeued by Slurm", "rank killed"):  # asked politely: nothing is lost
        assert (first.kind, first.lost_steps) == ("saved", 0)


def test_slurm_excludes_the_node_of_a_killed_rank(drills: dict[str, Future[Drill]]) -> None:
    run, _ = drills["rank killed"].result()
    first, second = history(run)
    assert (first.kind, first.rank) == ("crash", 1)
    assert "rank 1 was killed" in first.reason
    assert "this job no longer uses it" in log(run)
    node = log(run).partition("rank 1 failed on ")[2].partition(":")[0]
    assert node
    assert node not in second.nodes


def test_slurm_does_not_requeue_a_run_that_would_fail_again(drills: dict[str, Future[Drill]]) -> None:
    run, job = drills["numeric error"].result()
    assert job.word == "failed"
    assert job.why == 'the loss is "NaN" at step 7'
    assert len(history(run)) == 1
    assert "not requeued: a restart would fail in the same way" in log(run)


def test_slurm_crash_loop_ends(drills: dict[str, Future[Drill]]) -> None:
    run, job = drills["crash loop"].result()
    assert job.word == "failed"
    assert len(history(run)) == 2
    assert "2 attempts in a row saved nothing after step 0; not requeued" in log(run)
    assert saved_steps(run.checkpoints) == []


def test_slurm_ranks_that_do_not_leave_are_ended_and_started_again(drills: dict[str, Future[Drill]]) -> None:
    run, job = drills["deaf"].result()
    assert job.word == "complete", log(run)
    assert losses(run) == curve()
    assert "the ranks did not exit in time" in log(run)
    first, _ = history(run)
    assert first.kind == "crash"


def test_slurm_logs_are_followed_to_the_end_of_the_run(drills: dict[str, Future[Drill]]) -> None:
    run, job = drills["followed"].result()
    seen = (run.root / "followed").read_text()
    assert f"==> logs/job-{job.submission.job_id}.out" in seen
    assert "==> attempts/000/rank-00001.log\nrank 1 starts from step 0\n" in seen
    assert "completed at step 40" in seen


def test_slurm_without_requeue_says_how_to_go_on(drills: dict[str, Future[Drill]]) -> None:
    run, job = drills["no requeue"].result()
    assert job.word == "stopped"
    assert f"to continue: colosseum jobs requeue {run.root.name}" in log(run)


@pytest.mark.long  # the script looks every 20 s
def test_slurm_job_leaves_earlier_when_its_saves_prove_slow(
    slurm: DevSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    # Slurm is told to signal a minute before the limit of four; two saves of 100 s and a minute are more than that.
    site = "cluster.env={STAND_IN_STEP_S: '2', STAND_IN_SAVE_TIME_S: '100.5'}"
    run = stand_in_run(tmp_path, "slow", "resources.time_limit=4m", site)
    submit(run)
    until_begun(run, 1)
    control.cancel(run, print)
    first, second = history(run)
    assert (first.kind, first.lost_steps) == ("saved", 0)
    assert second.began_unix_s is not None
    assert first.began_unix_s is not None
    assert second.began_unix_s - first.began_unix_s < 90
