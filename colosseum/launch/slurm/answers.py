"""What squeue and sacct print with --json -> JobState. Pure.

Two shapes are read: 22.05 has a state as one word and times as numbers; 23.02 and later have a list of states and
times as ``{"set": true, "infinite": false, "number": N}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from colosseum.errors import EnvironmentFault
from colosseum.launch.schedulers.base import JobState, Phase

PHASES: dict[str, Phase] = {
    "PENDING": "waiting",
    "CONFIGURING": "waiting",
    "REQUEUED": "waiting",
    "REQUEUE_HOLD": "waiting",
    "REQUEUE_FED": "waiting",
    "RESV_DEL_HOLD": "waiting",
    "SPECIAL_EXIT": "waiting",
    "SUSPENDED": "running",
    "RUNNING": "running",
    "COMPLETING": "running",
    "STAGE_OUT": "running",
    "SIGNALING": "running",
    "STOPPED": "running",
    "RESIZING": "running",
    "COMPLETED": "completed",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "FAILED": "failed",
    "TIMEOUT": "failed",
    "NODE_FAIL": "failed",
    "BOOT_FAIL": "failed",
    "DEADLINE": "failed",
    "OUT_OF_MEMORY": "failed",
    "PREEMPTED": "failed",
}
WORDS = {
    "Priority": "waits behind jobs of higher priority",
    "Resources": "waits for free nodes",
    "Dependency": "waits for another job to end",
    "DependencyNeverSatisfied": "can never start: a job it depends on failed",
    "BeginTime": "starts again in a moment",
    "JobHeldUser": "is held; `scontrol release` frees it",
    "JobHeldAdmin": "is held by an administrator",
    "ReqNodeNotAvail": "waits for nodes that are down or reserved",
    "PartitionDown": "waits for a partition that is down",
    "PartitionTimeLimit": "can never start: its time limit is above the partition's",
    "PartitionNodeLimit": "can never start: it needs more nodes than the partition has",
    "AssocGrpGRES": "waits: the account's GPUs are all in use",
    "AssocMaxJobsLimit": "waits: the account's limit of running jobs is reached",
    "QOSMaxGRESPerUser": "waits: your GPUs of this QOS are all in use",
    "QOSGrpGRES": "waits: the QOS's GPUs are all in use",
    "JobArrayTaskLimit": "waits: the limit of its array's running jobs is reached",
    "Reservation": "waits for its reservation to begin",
    "TimeLimit": "reached its time limit",
    "NonZeroExitCode": "ended with an error",
    "NodeDown": "lost a node",
    "JobLaunchFailure": "could not be started on its nodes",
    "launch failed requeued held": "could not be started on its nodes and is held",
}
"""Slurm's reasons in plain English."""


def queue(text: str) -> dict[str, JobState]:
    """Jobs of ``squeue --json`` by id; jobs of an array by ARRAY_INDEX."""
    return {
        name: _of_queue(job, name)
        for job in _jobs(text, "squeue")
        for name in _names(job, job.get("array_job_id"), job.get("array_task_id"), job.get("array_task_string"))
    }


def accounts(text: str) -> dict[str, JobState]:
    """Jobs of ``sacct --json`` by id, of an array by ARRAY_INDEX; of one that was requeued, its last start."""
    found = {}
    for job in _jobs(text, "sacct"):
        array = _section(job, "array")
        for name in _names(job, array.get("job_id"), array.get("task_id"), array.get("task")):
            found[name] = _of_accounts(job, name)
    return found


def _names(job: Mapping[str, Any], array: Any, index: Any, waiting: Any) -> Iterator[str]:
    """How commands call a job: its id, or ARRAY_INDEX. Jobs of an array that wait are one row with all their indices.

    Args:
        waiting: such indices as Slurm writes them, like ``2-5,9,12-20:4%1``.
    """
    if not (array_id := _number(array)):
        yield str(job["job_id"])
        return
    if isinstance(index, dict):
        index = index.get("number") if index.get("set") else None
    if index is not None:
        yield f"{int(array_id)}_{index}"
        return
    for first, last, step in re.findall(r"(\d+)(?:-(\d+))?(?::(\d+))?(?=[,%]|$)", str(waiting or "").partition("%")[0]):
        yield from (f"{int(array_id)}_{i}" for i in range(int(first), int(last or first) + 1, int(step or 1)))


def _jobs(text: str, command: str) -> list[dict[str, Any]]:
    try:
        jobs = json.loads(text)["jobs"]
        return [job for job in jobs if isinstance(job, dict) and "job_id" in job]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise EnvironmentFault(f"{command} --json printed no jobs; is this Slurm older than 21.08?") from error


def _of_queue(job: Mapping[str, Any], name: str) -> JobState:
    state = _state(job.get("job_state"))
    return JobState(
        job_id=name,
        phase=PHASES.get(state, "unknown"),
        detail=_detail(state, job.get("state_reason")),
        restarts=int(_number(job.get("restart_cnt")) or 0),
        nodes=str(job.get("nodes") or ""),
        start_unix_s=_number(job.get("start_time")),
        end_unix_s=_number(job.get("end_time")),
        folder=str(job.get("current_working_directory") or ""),
        script=str(job.get("command") or ""),
    )


def _of_accounts(job: Mapping[str, Any], name: str) -> JobState:
    states, times = _section(job, "state"), _section(job, "time")
    state = _state(states.get("current"))
    nodes = str(job.get("nodes") or "")
    return JobState(
        job_id=name,
        phase=PHASES.get(state, "unknown"),
        detail=_detail(state, states.get("reason")),
        restarts=int(_number(job.get("restart_cnt")) or 0),
        nodes="" if nodes == "None assigned" else nodes,
        start_unix_s=_number(times.get("start")),
        end_unix_s=_number(times.get("end")),
        folder=str(job.get("working_directory") or ""),
    )


def _state(value: Any) -> str:
    """``"RUNNING"``, ``["RUNNING", "COMPLETING"]`` (the last says most) or ``"CANCELLED by 0"`` as one word."""
    if isinstance(value, list):
        value = value[-1] if value else ""
    return str(value or "").split(" ")[0].upper()


def _detail(state: str, reason: Any) -> str:
    reason = "" if reason in (None, "None", "") else str(reason)
    word = state.lower().replace("_", " ")
    said = WORDS.get(reason, reason)
    return f"{word}: {said}" if said else word


def _number(value: Any) -> float | None:
    """A count or time of either shape; None = not set (Slurm writes 0 for times that are not known)."""
    if isinstance(value, dict):
        if not value.get("set") or value.get("infinite"):
            return None
        value = value.get("number")
    return float(value) if isinstance(value, int | float) and 0 < value < 1e18 else None


def _section(job: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = job.get(name)
    return found if isinstance(found, dict) else {}
