"""``jobs cancel`` and ``jobs requeue``: by facts of /proc and answers of Slurm, never by a number in a file alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from colosseum import owner
from colosseum.launch.local.run_processes import processes_of
from colosseum.records import Owner
from colosseum.rundir import RunDir, append_line
from tests.cli.conftest import Cli, program_bundle

COLOSSEUM = Path(sys.executable).parent / "colosseum"
TRAINS = """
import json, os, signal, sys, time
attempt = int(os.environ["COLOSSEUM_ATTEMPT"])
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
if os.environ["RANK"] == "0":
    row = {"kind": "train", "step": attempt + 1, "attempt": attempt, "time_unix_s": time.time() + 1, "loss": 2.0}
    with open("metrics.jsonl", "a") as file:
        file.write(json.dumps(row) + "\\n")
time.sleep(120)
"""


def waited(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 90
    while not (value := what()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


@pytest.fixture
def run(cli: Cli, inputs: Path) -> Iterator[RunDir]:
    """A run of one rank that was never started."""
    run = RunDir(inputs / "runs" / "20260101-000000-mine-abcd")
    run.root.mkdir(parents=True)
    (inputs / "s").mkdir()
    program_bundle(inputs / "s" / "kept", TRAINS, ranks=1, base=inputs).rename(run.bundle)
    yield run
    for process in processes_of(run):
        os.kill(process.pid, signal.SIGKILL)


def by_hand(run: RunDir) -> subprocess.Popen[str]:
    """``bash bundle/launch.sh``, typed in the run folder, once its rank trains."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path}
    process = subprocess.Popen(["bash", "bundle/launch.sh"], cwd=run.root, env=env, stderr=subprocess.PIPE, text=True)
    before = len(run.attempt_numbers())
    waited(lambda: process.poll() is not None or rows(run) > before)
    return process


def rows(run: RunDir) -> int:
    return len(run.metrics.read_text().splitlines()) if run.metrics.exists() else 0


def status(cli: Cli, run: RunDir) -> dict[str, Any]:
    listed = json.loads(cli("jobs", "list", "--json").out)["jobs"]
    shown = json.loads(cli("jobs", "status", run.root.name, "--json").out)
    assert [(job["job_id"], job["state"]) for job in listed] == [(shown["job_id"], shown["state"])]
    return dict(shown)


def submissions(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.submissions.read_text().splitlines()] if run.submissions.exists() else []


def requeue(run: RunDir) -> subprocess.Popen[str]:
    command = [COLOSSEUM, "jobs", "requeue", str(run.root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def requeued(run: RunDir) -> str:
    """What a requeue that succeeds says."""
    process = requeue(run)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def test_a_run_started_by_hand_is_seen_and_cancelled(cli: Cli, run: RunDir) -> None:
    with by_hand(run) as process:
        shown = status(cli, run)
        assert (shown["job_id"], shown["scheduler"], shown["state"]) == (str(process.pid), "local", "running")
        for words in (("train", "cpt", "--from", str(run.root)), ("train", "cpt", "--from", str(run.root))):
            refused = cli(*words)
            assert refused.code == 2 and f"job {process.pid} of {run.root.name} is running" in refused.said
        done = cli("jobs", "cancel", run.root.name)
        assert done.code == 0 and done.out.startswith(f"cancelled job {process.pid} of {run.root.name}: ")
        assert process.wait(timeout=60) == 75
    assert status(cli, run)["state"] == "stopped"
    assert submissions(run) == []


def test_a_run_that_trains_here_saves_and_is_started_again(cli: Cli, run: RunDir) -> None:
    with by_hand(run) as process:
        out = requeued(run)
        assert process.wait(timeout=60) == 75
    (submission,) = submissions(run)
    assert out == f"started in the background as job {submission['job_id']}: colosseum jobs logs -f {run.root.name}\n"
    waited(lambda: rows(run) == 2)
    assert status(cli, run)["job_id"] == submission["job_id"]
    assert run.attempt_numbers() == [0, 1]


def test_a_run_that_died_with_its_machine_is_started_again(cli: Cli, run: RunDir) -> None:
    with by_hand(run) as process:
        for one in processes_of(run):
            os.kill(one.pid, signal.SIGKILL)
        process.wait(timeout=60)
    number, holder = owner.newest(run.root)
    assert holder is not None
    # As if the machine had started again since, and the number were a process of ours now.
    before_the_crash = holder._replace(boot_id="another", pid=os.getpid())
    (run.root / "owners" / f"{number:06d}").write_text(before_the_crash.to_line())
    assert status(cli, run)["state"] == "ended"
    refused = cli("jobs", "cancel", run.root.name)
    assert refused.code == 2 and "has ended: ended; nothing to cancel" in refused.said
    requeued(run)
    waited(lambda: rows(run) == 2)


def test_a_run_of_another_machine_is_not_judged_from_here(cli: Cli, run: RunDir) -> None:
    (run.root / "owners").mkdir()
    elsewhere = owner.this_process()._replace(host="login9", boot_id="another")
    (run.root / "owners" / "000001").write_text(elsewhere.to_line())
    shown = status(cli, run)
    assert (shown["state"], shown["reason"]) == (
        "unknown",
        "it was started on login9, whose processes cannot be seen from here",
    )
    for verb in ("cancel", "requeue"):
        refused = cli("jobs", verb, run.root.name)
        assert refused.code == 2 and "started on login9" in refused.said
    refused = cli("train", "cpt", "--from", str(run.root))
    assert refused.code == 2 and "remove the folder owners/" in refused.said
    assert submissions(run) == []


def test_of_two_requeues_at_once_one_starts_the_run(run: RunDir) -> None:
    append_line(run.submissions, {"scheduler": "local", "job_id": "999999999", "argv": [], "time_unix_s": 1.0})
    for turn in range(3):
        both = [requeue(run), requeue(run)]
        said = [process.communicate(timeout=120) for process in both]
        assert sorted(process.returncode for process in both) == [0, 2], said
        (refused,) = (" ".join(err.split()) for process, (_, err) in zip(both, said, strict=True) if process.returncode)
        assert "nothing was started" in refused
        assert len(submissions(run)) == turn + 2
        waited(lambda turn=turn: rows(run) == turn + 1)
        for process in processes_of(run):
            os.kill(process.pid, signal.SIGKILL)
        waited(lambda: not processes_of(run))
    assert list((run.root / "commands").iterdir()) == []


def test_a_command_that_was_killed_is_passed_over(cli: Cli, run: RunDir) -> None:
    append_line(run.submissions, {"scheduler": "local", "job_id": "999999999", "argv": [], "time_unix_s": 1.0})
    (run.root / "commands").mkdir()
    with subprocess.Popen(["sleep", "60"]) as command:
        (run.root / "commands" / "000001").write_text(owner.this_process(command.pid).to_line())
        refused = cli("jobs", "requeue", run.root.name)
        assert refused.code == 2 and f"another command (process {command.pid} on " in refused.said
        command.kill()
    requeued(run)
    (run.root / "commands" / "000001").write_text("{}")
    refused = cli("jobs", "requeue", run.root.name)
    assert refused.code == 2 and "cannot be read" in refused.said


HOSTILE: tuple[Any, ...] = ("-1", "0", "--me", "1;2", "1 2", str(2**70), "", "٣", -1, 0, 2**70, True, None, [7], {})


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands: squeue knows job 77, which is another run's; the file that says what scancel was told."""
    told, programs = tmp_path / "told", tmp_path / "bin"
    programs.mkdir()
    job = {"job_id": 77, "job_state": "RUNNING", "current_working_directory": "/home/other", "command": "/x/job.sbatch"}
    squeue = f"#!/bin/sh\ncat <<'END'\n{json.dumps({'jobs': [job]})}\nEND\n"
    for name, text in {"squeue": squeue, "scancel": f'#!/bin/sh\necho "$@" >> {told}\n'}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return told


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the user that is not the run's."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        assert process.poll() is None, "it was signalled"
        process.kill()


@pytest.mark.parametrize("scheduler", ["slurm", "local"])
def test_no_job_id_of_a_file_reaches_scancel_or_a_process(
    cli: Cli, run: RunDir, slurm: Path, bystander: subprocess.Popen[bytes], scheduler: Any
) -> None:
    for job_id in (*HOSTILE, *((bystander.pid,) if scheduler == "local" else ())):
        row = {"scheduler": scheduler, "job_id": job_id, "argv": [], "time_unix_s": time.time() + 1e9}
        run.submissions.write_text(json.dumps(row) + "\n")
        done = cli("jobs", "cancel", run.root.name)
        assert done.code == 2 and "nothing was cancelled" in done.said, (job_id, done)
        assert cli("jobs", "requeue", run.root.name).code == 2
        assert cli("jobs", "list").code == 0
    assert not slurm.exists()


@pytest.mark.parametrize("field", ["pid", "slurm_job"])
def test_no_owner_of_a_file_reaches_scancel_or_a_process(
    cli: Cli, run: RunDir, slurm: Path, bystander: subprocess.Popen[bytes], field: str
) -> None:
    (run.root / "owners").mkdir()
    record = owner.this_job("77", 0, bystander.pid) if field == "slurm_job" else owner.this_process(bystander.pid)
    for value in HOSTILE:
        row = {**record._asdict(), field: value, "time_unix_s": time.time() + 1e9}
        (run.root / "owners" / "000001").write_text(json.dumps(row) + "\n")
        done = cli("jobs", "cancel", run.root.name)
        assert done.code == 2 and "nothing was cancelled" in done.said, (value, done)
        assert cli("jobs", "requeue", run.root.name).code == 2
    assert not slurm.exists()


@pytest.mark.parametrize("change", [{}, {"start_ticks": 1}, {"boot_id": "another"}, {"pid_namespace": "pid:[1]"}])
def test_a_record_that_names_a_process_of_something_else(
    cli: Cli, run: RunDir, bystander: subprocess.Popen[bytes], change: dict[str, Any]
) -> None:
    """The number was given out again, or somebody wrote down a living process of the user, with all that is known."""
    (run.root / "owners").mkdir()
    record = owner.this_process(bystander.pid)._replace(**change)
    (run.root / "owners" / "000001").write_text(record.to_line())
    done = cli("jobs", "cancel", run.root.name)
    assert done.code == 2 and "nothing" in done.said


def written(run: RunDir, record: Owner) -> None:
    (run.root / "owners").mkdir()
    (run.root / "owners" / "000001").write_text(record.to_line())


def test_a_job_of_that_number_in_another_folder_is_not_the_run_s(cli: Cli, run: RunDir, slurm: Path) -> None:
    written(run, owner.this_job("77", 0, 1))
    done = cli("jobs", "cancel", run.root.name)
    assert done.code == 2 and "job 77 is of another folder, /home/other" in done.said
    assert not slurm.exists()


def test_a_job_that_slurm_has_forgotten_is_not_called_cancelled(cli: Cli, run: RunDir, slurm: Path) -> None:
    written(run, owner.this_job("5", 0, 1))
    run.begin_attempt()[1].write_outcome(
        "saved", retry=True, step=7, last_saved_step=7, rank=0, reason="stopped on request at step 7"
    )
    run.attempt(0).env.write_text(
        json.dumps({"attempt": 0, "saved_step": 0, "job_id": "5", "nodes": "n1", "time_unix_s": 1.0})
    )
    assert "has ended: stopped; nothing to cancel" in cli("jobs", "cancel", run.root.name).said
    run.attempt(0).outcome.unlink()
    done = cli("jobs", "cancel", run.root.name)
    assert done.code == 2 and done.out == ""
    assert f"job 5 of {run.root.name} is unknown to Slurm (Slurm has forgotten it)" in done.said
    assert "attempt 0 wrote no outcome.json, it has no checkpoint; nothing to cancel" in done.said
    assert not slurm.exists()


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "object": lambda p: p.write_bytes(b"{}\n"),
    "byte": lambda p: p.write_bytes(b"\xff"),
    "fifo": os.mkfifo,
    "link": lambda p: p.symlink_to("/nonexistent"),
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_damaged_owners_are_a_row_that_says_so(cli: Cli, run: RunDir, damage: str) -> None:
    (run.root / "owners").mkdir()
    DAMAGE[damage](run.root / "owners" / "000001")
    assert (shown := status(cli, run))["state"] == "unreadable"
    assert "owners/ cannot be read" in shown["reason"]
    for words in (("jobs", "cancel", run.root.name), ("jobs", "requeue", run.root.name)):
        assert cli(*words).code == 2
    refused = cli("train", "cpt", "--from", str(run.root))
    assert refused.code == 2 and "nothing was started" in refused.said
