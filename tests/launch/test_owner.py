"""Who owns a run folder: one Slurm job or process at a time. ``squeue`` is a program that knows which jobs live."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from colosseum import owner
from colosseum.records import Owner
from colosseum.rundir import EXIT_FINAL, RunDir

ROOT = Path(__file__).parents[2]
OWN = """
import os, sys
from colosseum.jobscript import main
sys.exit(main(["own", *sys.argv[1:], str(os.getpid())]))
"""
SQUEUE = """#!/bin/sh
case " $LIVE " in
  *" down "*) echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1;;
  *" $3 "*) echo RUNNING;;
  *) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;;
esac
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text(SQUEUE)
    squeue.chmod(0o755)
    (tmp_path / "run").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    return {**kept, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.fixture
def run(tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder, for takers in this process."""
    monkeypatch.setenv("PATH", env["PATH"])
    monkeypatch.setenv("LIVE", "")
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    return tmp_path / "run"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def start(folder: Path, env: dict[str, str], job: str, live: str = "", restart: int = 0) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", OWN, job, str(restart)]
    return subprocess.Popen(words, cwd=folder / "run", env={**env, "LIVE": live}, stdout=subprocess.PIPE, text=True)


def own(folder: Path, env: dict[str, str], job: str, live: str = "", restart: int = 0) -> tuple[int, str]:
    process = start(folder, env, job, live, restart)
    said = process.communicate(timeout=60)[0]
    return process.returncode, said


def record(folder: Path) -> Owner:
    found = owner.newest(folder)[1]
    assert found is not None
    return found


def dead(pid: int = 1, **more: Any) -> Owner:
    """A record whose process has ended: that number is another process now."""
    return owner.this_process(pid)._replace(start_ticks=1, **more)


def test_a_living_job_keeps_its_run_and_a_dead_one_is_followed(tmp_path: Path, env: dict[str, str]) -> None:
    assert own(tmp_path, env, "4") == (0, "")
    assert own(tmp_path, env, "4", live="4", restart=1) == (0, "")  # requeued
    code, said = own(tmp_path, env, "5", live="4 5")
    assert (code, said) == (1, "run belongs to job 4: it is running; nothing was started or changed\n")
    code, said = own(tmp_path, env, "5", live="down")
    assert code == 1 and "squeue does not answer" in said
    assert record(tmp_path / "run").slurm_job == "4"
    assert own(tmp_path, env, "5_1", live="5_1") == (0, "")
    assert own(tmp_path, env, "4", live="4 5_1")[0] == 1


def test_a_job_s_script_typed_twice_in_one_allocation_runs_once(run: Path, sleeper: subprocess.Popen[bytes]) -> None:
    assert owner.take(run, owner.this_job("4", 0, sleeper.pid)) == ""
    mine = owner.this_job("4", 0, os.getpid())
    assert owner.take(run, mine) == "run belongs to job 4: it is running; nothing was started or changed"
    assert owner.take(run, mine._replace(restart=1)) == ""  # Slurm requeued it
    assert owner.take(run, owner.this_job("4", 1, sleeper.pid)) != ""
    sleeper.kill()
    sleeper.wait()
    assert owner.take(run, mine._replace(restart=2)) == ""


def test_a_job_of_another_cluster_cannot_be_asked_here(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "big")
    assert owner.take(run, owner.this_job("4", 0, os.getpid())) == ""
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "small")
    assert "Slurm's cluster big, which cannot be asked from small" in owner.take(run, owner.this_job("5", 0, 1))
    assert "cluster big" in owner.take(run, owner.this_job("4", 0, 1))  # another job of the same number


def test_of_many_takers_at_once_one_wins(tmp_path: Path, env: dict[str, str]) -> None:
    own(tmp_path, env, "1")
    jobs = [str(n) for n in range(10, 18)]
    takers = [start(tmp_path, env, job, live=" ".join(jobs)) for job in jobs]
    for taker in takers:
        taker.communicate(timeout=60)
    winners = [job for job, taker in zip(jobs, takers, strict=True) if taker.returncode == 0]
    assert winners == [record(tmp_path / "run").slurm_job]
    assert len(list((tmp_path / "run" / "owners").iterdir())) == 2


def test_a_living_process_keeps_its_run(run: Path, sleeper: subprocess.Popen[bytes]) -> None:
    theirs = owner.this_process(sleeper.pid)
    assert owner.take(run, theirs) == ""
    whose = f"run belongs to process {sleeper.pid} on {theirs.host}: it is running"
    assert owner.held(run) == whose
    for mine in (owner.this_process(), owner.this_job("5", 0, os.getpid())):
        assert owner.take(run, mine) == f"{whose}; nothing was started or changed"
    sleeper.kill()
    deadline = time.monotonic() + 10
    while owner.held(run) and time.monotonic() < deadline:  # also before its parent has looked
        time.sleep(0.01)
    assert owner.take(run, owner.this_job("5", 0, os.getpid())) == ""
    assert [p.name for p in sorted((run / "owners").iterdir())] == ["000001", "000002"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),  # its number is another process now
        ({"pid": 2**22}, ""),
        ({"boot_id": "another", "pid": os.getpid()}, ""),  # the machine crashed and started again
        ({"time_unix_s": 4e9}, ""),  # a clock that jumped, or a lie: no time decides
        ({"time_unix_s": 0.0}, ""),
        ({"host": "login9"}, "its processes cannot be seen from here"),
        ({"host": "login9", "boot_id": "another"}, "its processes cannot be seen from here"),
        ({"pid_namespace": "pid:[1]"}, "its processes cannot be seen from here"),  # a container on this machine
        ({"host": "node7", "slurm_job": "4"}, ""),  # in an allocation that has ended
        ({"host": "node7", "slurm_job": "6"}, "its processes cannot be seen from here"),
    ],
)
def test_facts_of_the_machine_decide_about_a_process(
    run: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], why: str
) -> None:
    monkeypatch.setenv("LIVE", "6")
    assert owner.take(run, dead()._replace(**change)) == ""
    found = owner.held(run)
    assert (why in found and "remove the folder owners/" in found) if why else found == ""


def test_a_process_on_a_node_says_in_whose_allocation(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4")
    assert owner.this_process().slurm_job == ""  # a shell of salloc may be on a login node and outlive the job
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    assert owner.this_process().slurm_job == "4"
    monkeypatch.setenv("SLURM_JOB_ID", "--me")
    assert owner.this_process().slurm_job == ""


def test_ranks_that_outlive_their_launcher_keep_the_run(run: Path) -> None:
    assert owner.take(run, dead()) == ""
    marks = {**os.environ, "COLOSSEUM_RUN": str(run), "RANK": "0"}
    with subprocess.Popen(["sleep", "600"], env=marks, start_new_session=True) as rank:
        try:
            assert f"it has ended, and its ranks (processes {rank.pid}) still run" in owner.held(run)
        finally:
            rank.kill()
    assert owner.held(run) == ""


def _link(place: Path) -> None:
    place.symlink_to("/nonexistent")


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.write_bytes(b""),
        lambda p: p.write_bytes(b"{}\n"),
        lambda p: p.write_bytes(b"\xff"),
        lambda p: p.write_bytes(b"--me\n"),
        lambda p: p.write_bytes(b"5\n"),
        lambda p: p.write_bytes(b"[" * 100_000),
        lambda p: p.write_text(dead()._replace(pid=-1).to_line()),
        lambda p: p.write_text(owner.this_job("4", 0, 1)._replace(slurm_job="--me").to_line()),
        os.mkfifo,
        _link,
        Path.mkdir,
    ],
    ids=["empty", "object", "byte", "word", "number", "deep", "pid", "job", "fifo", "link", "folder"],
)
def test_a_record_that_nobody_can_read_is_not_passed_over(run: Path, damage: Callable[[Path], Any]) -> None:
    assert owner.take(run, dead()) == ""
    damage(run / "owners" / "000002")
    assert "cannot be read" in owner.held(run)
    assert "remove the folder owners/" in owner.take(run, owner.this_process())
    assert "remove the folder owners/" in owner.take(run, owner.this_job("5", 0, os.getpid()))


def test_a_folder_that_is_none_or_has_no_number_left_is_said(run: Path) -> None:
    (run / "owners").write_text("")
    assert owner.take(run, owner.this_process()).startswith(f"cannot write in {run / 'owners'}: ")
    assert "cannot be read" in owner.held(run)
    (run / "owners").unlink()
    (run / "owners").mkdir()
    (run / "owners" / "notes.txt").write_text("of somebody")
    assert owner.held(run) == ""
    (run / "owners" / "999999999999").write_text(dead().to_line())
    assert "cannot be read" in owner.take(run, owner.this_process())


LAUNCHER = [sys.executable, "-P", "-m", "colosseum.launch.local.ranks", "1", sys.executable, "-c"]
SLOW = "import time, pathlib; pathlib.Path('trains').touch(); time.sleep(600)"


def test_the_same_run_by_hand_twice_trains_once(run: Path) -> None:
    """``launch.sh`` in two terminals; then the first one's machine goes down."""
    with subprocess.Popen([*LAUNCHER, SLOW], cwd=run, stderr=subprocess.PIPE, text=True) as first:
        deadline = time.monotonic() + 60
        while not (run / "trains").exists():
            assert time.monotonic() < deadline and first.poll() is None
            time.sleep(0.05)
        second = subprocess.run([*LAUNCHER, "pass"], cwd=run, capture_output=True, text=True, timeout=60)
        assert second.returncode == EXIT_FINAL
        host = record(run).host
        whose = f"run belongs to process {first.pid} on {host}: it is running; nothing was started or changed\n"
        assert second.stderr == whose
        first.kill()
    ranks = [p.pid for p in owner.processes()[str(run)] if p.is_rank]
    second = subprocess.run([*LAUNCHER, "pass"], cwd=run, capture_output=True, text=True, timeout=60)
    assert second.returncode == EXIT_FINAL
    assert f"(processes {ranks[0]}) still run" in second.stderr
    os.kill(ranks[0], 9)
    deadline = time.monotonic() + 10
    while owner.held(run):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert RunDir(run).attempt_numbers() == [0]
    assert subprocess.run([*LAUNCHER, "pass"], cwd=run, timeout=60).returncode == 0
    assert RunDir(run).attempt_numbers() == [0, 1]
