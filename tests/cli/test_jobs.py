"""``colosseum jobs`` on runs of this machine. The ranks run small programs instead of training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from colosseum.launch.local.run_processes import processes_of
from colosseum.rundir import RunDir
from tests.cli.conftest import Cli, program_bundle

GOOD = """
import json, os, time
if os.environ["RANK"] == "0":
    with open("metrics.jsonl", "a") as file:
        for step in (1, 2):
            row = {"kind": "train", "step": step, "attempt": 0, "time_unix_s": time.time(), "loss": 3.5 / step}
            print(json.dumps({**row, "step_time_s": 0.5, "tokens_per_s": 1000.0, "mfu": 0.25}), file=file)
print("hello from rank", os.environ["RANK"])
"""
BAD = "import sys; sys.exit('rank met a wall')"
SLOW_SAVE = """
import os, signal, sys, time
from pathlib import Path
rank = os.environ["RANK"]
def save(number, frame):
    time.sleep(1.5)
    Path("saved-" + rank).touch()
    sys.exit(75)
signal.signal(signal.SIGUSR1, save)
Path("trains-" + rank).touch()
time.sleep(120)
"""


@pytest.fixture
def ran(cli: Cli, inputs: Path) -> str:
    """The name of a run that is complete; a second one failed."""
    for folder in ("a", "b"):
        (inputs / folder).mkdir()
    assert cli("bundle", "run", str(program_bundle(inputs / "a" / "kept", GOOD, ranks=2, base=inputs))).code == 0
    (name,) = (p.name for p in Path("runs").iterdir())
    assert cli("bundle", "run", str(program_bundle(inputs / "b" / "kept", BAD, ranks=2, base=inputs))).code == 4
    return name


def test_jobs_of_this_machine(cli: Cli, ran: str) -> None:
    listed = json.loads(cli("jobs", "list", "--json").out)
    assert listed["schema"] == "colosseum.jobs/1"
    states = {Path(job["run"]).name: job["state"] for job in listed["jobs"]}
    assert states.pop(ran) == "complete"
    assert list(states.values()) == ["failed"]
    table = cli("jobs", "list").out.splitlines()
    assert table[0].split() == ["run", "job", "state", "step", "loss", "MFU", "left", "saved"]
    assert any(line.split()[:1] == [ran] and "1.7500" in line and "25.0%" in line for line in table)
    assert "wrote no outcome.json" in cli("jobs", "list").out

    status = cli("jobs", "status", ran).out
    assert "state" in status and "complete" in status
    assert "2 of 300" in status
    assert "no checkpoint yet" in status
    (attempt,) = json.loads(cli("jobs", "history", ran, "--json").out)["attempts"]
    assert (attempt["from_step"], attempt["last_step"], attempt["kind"]) == (0, 2, "completed")
    logs = cli("jobs", "logs", ran, "--rank", "1").out
    assert "==> attempts/000/rank-00001.log\nhello from rank 1\n" in logs


def test_jobs_that_are_refused(cli: Cli, ran: str) -> None:
    assert f"of {ran} has ended: complete" in cli("jobs", "cancel", ran).said
    assert "is complete; to train further" in cli("jobs", "requeue", ran).said
    several = cli("jobs", "status", "program")
    assert several.code == 2
    assert "several runs have this in their name" in several.said
    assert cli("jobs", "status", "nothing-like-it").code == 2
    assert json.loads(cli("jobs", "status", "nothing-like-it", "--json").out)["faults"][0]["path"] == "RUN"


def test_a_failed_run_is_started_again(cli: Cli, ran: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colosseum.monitor.logs.ASK_EVERY_S", 1.0)
    (failed,) = (p for p in Path("runs").iterdir() if p.name != ran)
    Path("b/program.py").write_text(GOOD)
    # By a process of its own, which the run outlives.
    command = [Path(sys.executable).parent / "colosseum", "jobs", "requeue", failed.name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("started in the background as job ")
    assert cli("jobs", "logs", "-f", failed.name).code == 0
    assert json.loads(cli("jobs", "status", failed.name, "--json").out)["state"] == "complete"


@pytest.fixture
def training(cli: Cli, inputs: Path) -> Iterator[Path]:
    """The folder of a run whose two ranks train, started by a process of its own."""
    (inputs / "s").mkdir()
    bundle = program_bundle(inputs / "s" / "kept", SLOW_SAVE, ranks=2, base=inputs)
    command = [Path(sys.executable).parent / "colosseum", "bundle", "run", bundle]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as starter:
        try:
            deadline = time.monotonic() + 60
            while len(list(Path("runs").glob("*/trains-*"))) < 2:
                assert time.monotonic() < deadline and starter.poll() is None
                time.sleep(0.1)
            (folder,) = Path("runs").iterdir()
            yield folder.resolve()
        finally:
            starter.kill()
            for process in processes_of(RunDir(folder)):
                os.kill(process.pid, signal.SIGKILL)


def state(cli: Cli, run: Path) -> str:
    return str(json.loads(cli("jobs", "status", run.name, "--json").out)["state"])


def job_id(run: Path) -> int:
    return int(json.loads((run / "submissions.jsonl").read_text().splitlines()[-1])["job_id"])


def test_cancel_waits_for_the_save(cli: Cli, training: Path) -> None:
    done = cli("jobs", "cancel", training.name)
    assert done.code == 0
    assert done.out.startswith(
        f"cancelled job {job_id(training)} of {training.name}: stopped before there was anything to save\n"
    )
    assert "waiting for the ranks to save: 0 s of at most " in done.err
    assert (training / "saved-0").exists() and (training / "saved-1").exists()
    assert state(cli, training) == "stopped"
    again = cli("jobs", "cancel", training.name)
    assert again.code == 2 and "nothing to cancel" in again.said


def test_ranks_without_their_launcher_are_shown_and_cancelled(cli: Cli, training: Path) -> None:
    os.kill(job_id(training), signal.SIGKILL)
    assert state(cli, training) in ("running", "starting")
    assert cli("jobs", "cancel", training.name).code == 0
    assert (training / "saved-0").exists() and (training / "saved-1").exists()
    assert processes_of(RunDir(training)) == []


@pytest.mark.parametrize("later_s", [0, 1e9])
def test_another_process_of_the_same_id_is_not_the_run(cli: Cli, ran: str, later_s: float) -> None:
    (failed,) = (p for p in Path("runs").iterdir() if p.name != ran)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        row = json.loads((failed / "submissions.jsonl").read_text().splitlines()[-1])
        row |= {"job_id": str(other.pid), "time_unix_s": time.time() + later_s}
        with (failed / "submissions.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        refused = cli("jobs", "cancel", failed.name)
        assert refused.code == 2 and "nothing to cancel" in refused.said
        assert other.poll() is None
        other.kill()


def test_watching_needs_no_torch() -> None:
    words = ("jobs list", "campaign status nothing", "cluster check local", "jobs history nothing")
    code = "import sys; from colosseum.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    for line in words:
        done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
