"""Who owns a run folder: one Slurm job at a time. ``squeue`` is a program that knows which jobs live."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN = "import sys; from colosseum.jobscript import main; sys.exit(main(['own', sys.argv[1]]))"
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
    return {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def start(folder: Path, env: dict[str, str], job: str, live: str = "") -> subprocess.Popen[str]:
    words = [sys.executable, "-c", OWN, job]
    return subprocess.Popen(words, cwd=folder / "run", env={**env, "LIVE": live}, stdout=subprocess.PIPE, text=True)


def own(folder: Path, env: dict[str, str], job: str, live: str = "") -> tuple[int, str]:
    process = start(folder, env, job, live)
    said = process.communicate(timeout=60)[0]
    return process.returncode, said


def test_a_living_owner_keeps_its_run_and_a_dead_one_is_followed(tmp_path: Path, env: dict[str, str]) -> None:
    assert own(tmp_path, env, "4") == (0, "")
    assert own(tmp_path, env, "4", live="4") == (0, "")  # requeued
    code, said = own(tmp_path, env, "5", live="4 5")
    assert (code, said) == (1, "run belongs to job 4: it is running; nothing was started or changed\n")
    code, said = own(tmp_path, env, "5", live="down")
    assert code == 1 and "squeue does not answer" in said
    assert [p.name for p in (tmp_path / "run" / "owners").iterdir()] == ["000001"]
    assert own(tmp_path, env, "5_1", live="5_1") == (0, "")
    assert own(tmp_path, env, "4", live="4 5_1")[0] == 1


def test_of_many_takers_at_once_one_wins(tmp_path: Path, env: dict[str, str]) -> None:
    own(tmp_path, env, "1")
    jobs = [str(n) for n in range(10, 18)]
    takers = [start(tmp_path, env, job, live=" ".join(jobs)) for job in jobs]
    for taker in takers:
        taker.communicate(timeout=60)
    winners = [job for job, taker in zip(jobs, takers, strict=True) if taker.returncode == 0]
    assert len(winners) == 1
    assert (tmp_path / "run" / "owners" / "000002").read_text().split() == winners
    assert len(list((tmp_path / "run" / "owners").iterdir())) == 2


def test_a_record_that_nobody_can_read_is_not_passed_over(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "run" / "owners").mkdir()
    (tmp_path / "run" / "owners" / "000003").write_text("--me\n")
    code, said = own(tmp_path, env, "5")
    assert code == 1 and "cannot be read" in said
