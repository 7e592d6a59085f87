"""A run folder is shared and may hold anything: `jobs` shows what can be read, says what cannot, and never ends."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colosseum.rundir import RunDir, append_line
from tests.cli.conftest import Cli

DEEP = b"[" * 200_000
NAME = "20260101-000000-{}-abcd"


def make_run(root: Path, name: str) -> RunDir:
    """A run whose one attempt trained two steps and crashed."""
    run = RunDir(root / NAME.format(name))
    run.bundle.mkdir(parents=True)
    run.logs.mkdir()
    (run.bundle / "manifest.json").write_text('{"total_steps": 300}')
    (run.bundle / "plan.json").write_text('{"step_time_s": 0.25}')
    row: dict[str, Any] = {"scheduler": "local", "job_id": "999999999", "argv": ["bash"], "time_unix_s": 1.0}
    append_line(run.submissions, row)
    attempt = run.attempt(0)
    attempt.root.mkdir(parents=True)
    env = {"attempt": 0, "saved_step": 0, "job_id": "999999999", "nodes": "here", "time_unix_s": 1.0}
    attempt.env.write_text(json.dumps(env))
    attempt.write_outcome("crash", retry=True, step=2, last_saved_step=None, rank=0, reason="rank met a wall")
    for step in (1, 2):
        row = {"kind": "train", "step": step, "attempt": 0, "time_unix_s": 2.0, "loss": 3.5, "step_time_s": 0.5}
        append_line(run.metrics, row)
    (run.logs / "job-999999999.out").write_text("hello\n")
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("before", "damaged", "later"):
        make_run(tmp_path / "runs", name)
    return tmp_path / "runs"


def told(cli: Cli, runs: Path) -> dict[str, dict[str, Any]]:
    """What ``jobs list --json`` says by name; the text form and the other verbs must only end well."""
    start = time.monotonic()
    damaged = NAME.format("damaged")
    table = cli("jobs", "list", "--runs", str(runs))
    assert table.code == 0, table
    shown = [cli("jobs", verb, damaged, "--runs", str(runs)) for verb in ("status", "history", "logs")]
    shown += [cli("jobs", verb, damaged, "--runs", str(runs)) for verb in ("cancel", "requeue")]
    assert {one.code for one in shown} <= {0, 2, 3}, shown
    for one in (table, *shown):
        assert "bug" not in one.err
        assert all(c.isprintable() or c in "\n\t" for c in one.out + one.err)
    done = cli("jobs", "list", "--runs", str(runs), "--json")
    assert time.monotonic() - start < 20
    return {Path(job["run"]).name.split("-")[2]: job for job in json.loads(done.out)["jobs"]}


SUBMISSIONS = [
    b"{}\n",
    b"\xff\n",
    b"null\n",
    b"[]\n",
    DEEP + b"\n",
    b'{"scheduler": "local", "job_id": 7, "argv": [], "time_unix_s": 1}\n',
    b'{"scheduler": "local", "job_id": "-1", "argv": [], "time_unix_s": 1}\n',
    b'{"scheduler": "slurm", "job_id": "--me", "argv": [], "time_unix_s": 1}\n',
    b'{"scheduler": "local", "job_id": "0", "argv": [], "time_unix_s": 1}\n',
    b'{"scheduler": "other", "job_id": "7", "argv": [], "time_unix_s": 1}\n',
    b'{"scheduler": "local", "job_id": "7", "argv": [], "time_unix_s": NaN}\n',
    b'{"scheduler": "local", "job_id": "7", "argv": null, "time_unix_s": 1}\n',
]


@pytest.mark.parametrize("line", SUBMISSIONS, ids=range(len(SUBMISSIONS)))
def test_a_submission_that_names_no_job(cli: Cli, runs: Path, line: bytes) -> None:
    with RunDir(runs / NAME.format("damaged")).submissions.open("ab") as file:
        file.write(line)
    jobs = told(cli, runs)
    assert {name: job["state"] for name, job in jobs.items()} == {
        "before": "failed",
        "damaged": "unreadable",
        "later": "failed",
    }
    assert jobs["damaged"]["reason"] == "the last line of submissions.jsonl has no job id"
    assert jobs["later"]["reason"] == "rank met a wall"
    refused = cli("jobs", "cancel", "damaged", "--runs", str(runs))
    assert "nothing was cancelled" in refused.said


def test_a_torn_submission_is_passed_over(cli: Cli, runs: Path) -> None:
    with RunDir(runs / NAME.format("damaged")).submissions.open("ab") as file:
        file.write(b'{"scheduler": "loc')
    assert told(cli, runs)["damaged"]["state"] == "failed"


OUTCOMES = [b"", b"{}", b"\xff", b"null", b'"crash"', DEEP, b'{"kind": "fine"}', b'{"kind": ["crash"]}', b"\x00" * 100]


@pytest.mark.parametrize("data", OUTCOMES, ids=range(len(OUTCOMES)))
def test_a_damaged_outcome_is_a_crash_that_nobody_can_explain(cli: Cli, runs: Path, data: bytes) -> None:
    RunDir(runs / NAME.format("damaged")).attempt(0).outcome.write_bytes(data)
    jobs = told(cli, runs)
    assert jobs["damaged"]["state"] == "failed"
    assert jobs["damaged"]["reason"].startswith("nobody knows how it ended: outcome.json holds no")
    assert jobs["damaged"]["step"] == 2
    assert jobs["later"]["state"] == "failed"


ODD = (None, "3", "\x1b[2J", [], {}, True, -1, 1e400, 10**400, "\u202e")


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_values_of_another_type(cli: Cli, runs: Path, value: object) -> None:
    """In every place of metrics, env, outcome, manifest and plan; a figure that is none is not shown."""
    run = RunDir(runs / NAME.format("damaged"))
    keys = ("kind", "step", "attempt", "time_unix_s", "loss", "mfu", "step_time_s", "tokens_per_s")
    with run.metrics.open("a") as file:
        for key in keys:
            row = {"kind": "train", "step": 3, "attempt": 0, "time_unix_s": 3.0, "loss": 1.0, "mfu": 0.5, key: value}
            file.write(json.dumps(row) + "\n")
        file.write(json.dumps(dict.fromkeys(keys, value)) + "\n")
    run.attempt(0).env.write_text(json.dumps(dict.fromkeys(("job_id", "nodes", "time_unix_s", "saved_step"), value)))
    known = {"kind": "crash", **dict.fromkeys(("retry", "step", "last_saved_step", "rank", "reason"), value)}
    run.attempt(0).outcome.write_text(json.dumps(known))
    (run.bundle / "manifest.json").write_text(json.dumps({"total_steps": value}))
    (run.bundle / "plan.json").write_text(json.dumps({"step_time_s": value}))
    jobs = told(cli, runs)
    assert (jobs["damaged"]["step"], jobs["damaged"]["loss"]) == (3, 1.0)
    assert jobs["damaged"]["total_steps"] is None
    assert jobs["later"]["state"] == "failed"


FILES = ("submissions.jsonl", "metrics.jsonl", "attempts/000/env.json", "attempts/000/outcome.json",
         "bundle/manifest.json", "bundle/plan.json", "logs/job-999999999.out", "attempts", "logs",
         "checkpoints")  # fmt: skip


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path)


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 28)


@pytest.mark.parametrize("make", [fifo, folder, endless, loop, large], ids=lambda make: make.__name__)
def test_a_file_that_is_something_else(cli: Cli, runs: Path, make: Callable[[Path], None]) -> None:
    """Nothing waits for a pipe's writer, reads a device, or reads a hundred megabytes of zeros."""
    for number, name in enumerate(FILES):
        run = make_run(runs / f"of-{number}", "damaged")
        make_run(runs / f"of-{number}", "later")
        path = run.root / name
        if path.is_dir():
            path.rename(path.with_name(f"{path.name}-before"))
        path.unlink(missing_ok=True)
        make(path)
        jobs = told(cli, runs / f"of-{number}")
        assert jobs["later"]["reason"] == "rank met a wall", name
        if name == "submissions.jsonl" and make is not large:
            assert jobs["damaged"]["state"] == "unreadable"


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user for a moment")
@pytest.mark.parametrize("closed", ["", *FILES[:4], "attempts/000", "bundle"])
def test_what_may_not_be_read(cli: Cli, runs: Path, closed: str) -> None:
    told(cli, runs)  # imports what it needs
    path = runs / NAME.format("damaged") / closed
    for place in (runs.parent, *runs.parent.parents[:-2], runs):
        place.chmod(0o755)
    path.chmod(0)
    os.seteuid(65534)
    try:
        done = cli("jobs", "list", "--runs", str(runs), "--json")
    finally:
        os.seteuid(0)
    jobs = {Path(job["run"]).name.split("-")[2]: job for job in json.loads(done.out)["jobs"]}
    assert jobs["later"]["state"] == "failed"
    if closed in ("", "submissions.jsonl"):
        assert jobs["damaged"]["state"] == "unreadable"
        assert "Permission denied" in jobs["damaged"]["reason"]


def test_text_of_others_does_not_drive_the_terminal(cli: Cli, runs: Path) -> None:
    run = RunDir(runs / NAME.format("damaged"))
    hostile = "\x1b]0;owned\x07\x9b2J\u202egnp.exe"
    run.attempt(0).outcome.write_text(json.dumps({"kind": "crash", "retry": True, "reason": hostile}))
    (run.logs / "job-999999999.out").write_text(hostile + "\r\n50%\r100%\n")
    told(cli, runs)
    shown = cli("jobs", "logs", "damaged", "--runs", str(runs)).out
    assert r"\x1b]0;owned\x07\x9b2J\u202egnp.exe" in shown
    assert "\n50%\n100%\n" in shown
    listed = cli("jobs", "list", "--runs", str(runs)).out.replace("\n", "")
    assert " ]0;owned " in listed  # a record's control characters are spaces
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(listed)


@pytest.mark.long
def test_thousands_of_damaged_runs(cli: Cli, tmp_path: Path) -> None:
    """3,000 run folders, each with a few bytes of a few files overwritten, cut, or repeated: one row each."""
    rng = random.Random(22)
    for number in range(3_000):
        run = make_run(tmp_path / "runs", f"n{number}")
        for name in rng.sample(FILES[:7], 2):
            path = run.root / name
            data = bytearray(path.read_bytes())
            for _ in range(rng.randrange(1, 8)):
                at = rng.randrange(len(data) + 1)
                data[at : at + rng.randrange(3)] = rng.choice(
                    [b"", b"\xff", b"\x00", b'"', b"{", b"1e999", b"\n", b"null"]
                )
            path.write_bytes(data)
    done = cli("jobs", "list", "--runs", str(tmp_path / "runs"), "--json")
    assert (done.code, done.err) == (0, "")
    states = [job["state"] for job in json.loads(done.out)["jobs"]]
    assert len(states) > 2_900  # one whose only submission has no line end was never submitted
    assert {"failed", "unreadable"} <= set(states) <= {"failed", "ended", "unreadable", "complete", "stopped"}
