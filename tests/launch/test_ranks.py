"""One attempt on this machine: what the ranks are told, and how their ends become one outcome."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colosseum import owner
from colosseum.rundir import EXIT_FINAL, EXIT_SAVED, RunDir

QUICK = "import sys; from colosseum.launch.local import ranks; ranks.GRACE_S = 0.2; sys.exit(ranks.main(sys.argv[1:]))"


def attempt(folder: Path, program: str, count: int = 2) -> tuple[int, dict[str, object]]:
    """Exit code and outcome of ``count`` ranks that run a Python text."""
    run = RunDir(folder)
    words = [sys.executable, "-c", QUICK, str(count), sys.executable, "-c", program]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    outcome = run.attempt(run.attempt_numbers()[-1]).read_outcome()
    assert outcome is not None
    return done.returncode, dict(outcome._asdict())


def test_ranks_know_their_place(tmp_path: Path) -> None:
    program = (
        "import json, os, socket\n"
        "names = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT',"
        " 'COLOSSEUM_RUN', 'COLOSSEUM_ATTEMPT')\n"
        "print(json.dumps({n: os.environ[n] for n in names}))"
    )
    assert attempt(tmp_path, program, 3)[0] == 0
    told = [json.loads(RunDir(tmp_path).attempt(0).rank_log(rank).read_text()) for rank in range(3)]
    assert [t["RANK"] for t in told] == [t["LOCAL_RANK"] for t in told] == ["0", "1", "2"]
    assert {t["WORLD_SIZE"] for t in told} == {t["LOCAL_WORLD_SIZE"] for t in told} == {"3"}
    assert len({t["MASTER_PORT"] for t in told}) == 1
    assert {t["COLOSSEUM_RUN"] for t in told} == {str(tmp_path)}


@pytest.mark.parametrize(
    ("program", "code", "kind", "retry", "rank"),
    [
        ("pass", 0, "completed", False, None),
        (f"import sys; sys.exit({EXIT_SAVED})", EXIT_SAVED, "saved", True, None),
        (f"import os, sys; sys.exit({EXIT_FINAL} * (os.environ['RANK'] == '1'))", EXIT_FINAL, "crash", False, 1),
        ("import os, sys; sys.exit(3 * (os.environ['RANK'] == '0'))", 70, "crash", True, 0),
        ("import os; os.environ['RANK'] == '1' and os.kill(os.getpid(), 9)", 70, "crash", True, 1),
    ],
)
def test_ends_become_one_outcome(
    tmp_path: Path, program: str, code: int, kind: str, retry: bool, rank: int | None
) -> None:
    found, outcome = attempt(tmp_path, program)
    assert (found, outcome["kind"], outcome["retry"], outcome["rank"]) == (code, kind, retry, rank)


def test_what_a_rank_wrote_wins(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom colosseum.rundir import RunDir\n"
        "a = RunDir(Path.cwd()).attempt(int(os.environ['COLOSSEUM_ATTEMPT']))\n"
        "a.write_outcome('numeric_error', retry=False, step=7, last_saved_step=5, rank=0, reason='loss is NaN')\n"
        "sys.exit(1)"
    )
    code, outcome = attempt(tmp_path, program, 1)
    assert code == EXIT_FINAL
    assert (outcome["kind"], outcome["reason"]) == ("numeric_error", "loss is NaN")


def test_a_failed_rank_ends_the_others_with_all_they_started(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "if os.environ['RANK'] == '0': sys.exit(1)\n"
        "child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True); time.sleep(600)"
    )
    start = time.monotonic()
    code, outcome = attempt(tmp_path, program)
    assert time.monotonic() - start < 20
    assert (code, outcome["rank"]) == (70, 0)
    pid = RunDir(tmp_path).attempt(0).rank_log(1).read_text().strip()
    if pid:  # it may have been ended before it started anything
        wait_for_end(pid)


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit(0)"])
def test_what_a_rank_started_ends_with_it(tmp_path: Path, end: str) -> None:
    """A save's writing process, say: it holds the run, which could not be started again."""
    program = f"import os, subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); {end}"
    attempt(tmp_path, program, 1)
    wait_for_end(RunDir(tmp_path).attempt(0).rank_log(0).read_text().strip())
    assert owner.held(tmp_path) == ""


def wait_for_end(pid: str) -> None:
    stat = Path(f"/proc/{pid}/stat")
    deadline = time.monotonic() + 5
    while stat.exists() and stat.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "a rank's child lives on"
        time.sleep(0.05)


def test_a_complete_run_is_not_started_again(tmp_path: Path) -> None:
    attempt(tmp_path, "pass", 1)
    words = [sys.executable, "-c", QUICK, "1", sys.executable, "-c", "raise SystemExit(1)"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert "is complete: nothing to do" in done.stderr
    assert RunDir(tmp_path).attempt_numbers() == [0]
