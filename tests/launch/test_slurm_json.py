"""Answers of squeue and sacct, as 22.05 printed them and in the shape of 23.02 and later."""

from __future__ import annotations

import json
from typing import Any

import pytest

from colosseum.errors import EnvironmentFault
from colosseum.launch.slurm.answers import PHASES, WORDS, accounts, queue

OLD: dict[str, Any] = {
    "job_id": 7,
    "job_state": "RUNNING",
    "state_reason": "None",
    "restart_cnt": 1,
    "nodes": "n[1-2]",
    "start_time": 1796119953,
    "end_time": 1796121753,
}
NEW: dict[str, Any] = {
    "job_id": 7,
    "job_state": ["RUNNING"],
    "state_reason": "None",
    "restart_cnt": {"set": True, "infinite": False, "number": 1},
    "nodes": "n[1-2]",
    "start_time": {"set": True, "infinite": False, "number": 1796119953},
    "end_time": {"set": True, "infinite": False, "number": 1796121753},
}


def _text(*jobs: dict[str, Any]) -> str:
    return json.dumps({"meta": {}, "errors": [], "jobs": jobs})


def test_both_shapes_say_the_same() -> None:
    old, new = queue(_text(OLD)), queue(_text(NEW))
    assert old == new
    job = old["7"]
    assert (job.phase, job.detail, job.restarts, job.nodes) == ("running", "running", 1, "n[1-2]")
    assert (job.start_unix_s, job.end_unix_s) == (1796119953.0, 1796121753.0)


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (["RUNNING", "COMPLETING"], "running"),
        (["PENDING", "REQUEUED"], "waiting"),
        (["CANCELLED"], "cancelled"),
        ("CANCELLED by 1000", "cancelled"),
        ("NODE_FAIL", "failed"),
        ([], "unknown"),
        (None, "unknown"),
        ("SOMETHING_NEW", "unknown"),
    ],
)
def test_states(state: Any, phase: str) -> None:
    assert queue(_text({**OLD, "job_state": state}))["7"].phase == phase


def test_times_that_are_not_set() -> None:
    unset = {"set": False, "infinite": False, "number": 0}
    endless = {"set": True, "infinite": True, "number": 0}
    job = queue(_text({**NEW, "start_time": unset, "end_time": endless}))["7"]
    assert (job.start_unix_s, job.end_unix_s) == (None, None)
    assert queue(_text({**OLD, "start_time": 0}))["7"].start_unix_s is None


def test_reasons_are_told_in_words() -> None:
    job = queue(_text({**OLD, "job_state": "PENDING", "state_reason": "Resources"}))["7"]
    assert job.detail == "pending: waits for free nodes"
    job = queue(_text({**OLD, "job_state": "PENDING", "state_reason": "Brand_New"}))["7"]
    assert job.detail == "pending: Brand_New"


def test_accounts() -> None:
    row = {
        "job_id": 7,
        "state": {"current": ["TIMEOUT"], "reason": "TimeLimit"},
        "time": {"start": 5, "end": 9},
        "nodes": "None assigned",
    }
    job = accounts(_text(row))["7"]
    assert (job.phase, job.detail, job.nodes, job.end_unix_s) == (
        "failed",
        "timeout: reached its time limit",
        "",
        9.0,
    )


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"jobs": null}', "squeue: error"])
def test_no_jobs_in_the_answer(text: str) -> None:
    with pytest.raises(EnvironmentFault, match=r"squeue --json printed no jobs"):
        queue(text)


def test_every_word_is_a_sentence_part() -> None:
    assert all(text[0].islower() and not text.endswith(".") for text in WORDS.values())
    assert set(PHASES.values()) == {"waiting", "running", "completed", "failed", "cancelled"}


def test_jobs_of_an_array_are_known_by_their_index() -> None:
    waiting = {**OLD, "job_id": 8, "array_job_id": 8, "array_task_id": None, "job_state": "PENDING"}
    waiting |= {"array_task_string": "2-4,7,10-20:5%1", "state_reason": "JobArrayTaskLimit"}
    old = [waiting, {**OLD, "job_id": 9, "array_job_id": 8, "array_task_id": 0}, {**OLD, "array_job_id": 0}]
    found = queue(_text(*old))
    assert sorted(found) == ["7", "8_0", *(f"8_{i}" for i in (10, 15, 2, 20, 3, 4, 7))]
    assert (found["8_0"].phase, found["8_15"].phase, found["8_15"].job_id) == ("running", "waiting", "8_15")
    assert found["8_2"].detail == "pending: waits: the limit of its array's running jobs is reached"

    def number(value: int) -> dict[str, Any]:
        return {"set": True, "infinite": False, "number": value}

    unset = {"set": False, "infinite": False, "number": 0}
    new = [
        {**waiting, "array_job_id": number(8), "array_task_id": unset},
        {**NEW, "job_id": 9, "array_job_id": number(8), "array_task_id": number(0)},
        {**NEW, "array_job_id": number(0), "array_task_id": unset},
    ]
    assert queue(_text(*new)) == found


def test_accounts_of_an_array() -> None:
    row = {"job_id": 8, "state": {"current": "COMPLETED"}, "array": {"job_id": 8, "task_id": 3, "task": None}}
    alone = {"job_id": 7, "state": {"current": "COMPLETED"}, "array": {"job_id": 0, "task_id": None, "task": None}}
    assert sorted(accounts(_text(row, alone))) == ["7", "8_3"]
