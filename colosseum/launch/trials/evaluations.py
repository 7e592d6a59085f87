"""Evaluations as jobs of a queue: one job, or an array of which every job evaluates one checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from colosseum.atomic import write_whole
from colosseum.bundle import to_json
from colosseum.checkpoint.folders import read_metadata
from colosseum.errors import Fault, RefusedInput
from colosseum.evaluation.folder import EvaluationFolder, Request
from colosseum.launch.runs.state_file import JobId, read_state_file
from colosseum.launch.schedulers.base import JobSize, Queue
from colosseum.recipe.base import Count, Section
from colosseum.recipe.cluster import Cluster
from colosseum.rundir import RunDir
from colosseum.units import parse_duration_s

COMMAND = "python -P -m colosseum.evaluation"
LIST, JOB = "jobs.json", "job.json"


class _Job(Section):
    """job.json: the newest job of a folder."""

    schema_: Literal["colosseum.evaluation-job/1"] = Field("colosseum.evaluation-job/1", alias="schema")
    job: JobId
    count: Count | None
    """Of the array's jobs; null = a single job."""


def _refuse_live(place: Path, queue: Queue) -> None:
    """Raises RefusedInput: the folder's job waits or runs."""
    if not (place / JOB).exists():
        return
    found = read_state_file(place / JOB, _Job)
    ids = [found.job] if found.count is None else [f"{found.job}_{i}" for i in range(found.count)]
    live = [state for state in queue.states(ids).values() if state.phase in ("waiting", "running")]
    if live:
        raise RefusedInput(f"job {found.job} still evaluates ({live[0].phase}): give the same command again later")


def _note(place: Path, job: str, count: int | None) -> str:
    row = _Job(schema="colosseum.evaluation-job/1", job=job, count=count)
    write_whole(place / JOB, to_json(row.model_dump(mode="json", by_alias=True)))
    return job


def submit(folder: EvaluationFolder, cluster: Cluster, queue: Queue, time_limit: str) -> str:
    """The job of one evaluation; its id.

    Raises:
        RefusedInput: the queue refuses it, or an earlier job of the folder still runs.
    """
    _refuse_live(folder.root, queue)
    place, size = RunDir(folder.root), _size([folder], cluster)
    job = queue.submit_script(place, cluster, "evaluate", f"{COMMAND} .", minutes=_minutes(time_limit), size=size)
    return _note(folder.root, job, None)


def submit_array(
    place: Path,
    folders: Sequence[EvaluationFolder],
    cluster: Cluster,
    queue: Queue,
    time_limit: str,
    at_once: int | None,
) -> str:
    """An array of evaluations, whose list and logs are in ``place``; its id."""
    place.mkdir(parents=True, exist_ok=True)
    _refuse_live(place, queue)
    write_whole(place / LIST, json.dumps([str(folder.root) for folder in folders]).encode())
    array = f"0-{len(folders) - 1}" + (f"%{at_once}" if at_once else "")
    command, size = f"{COMMAND} {LIST}", _size(folders, cluster)
    minutes = _minutes(time_limit)
    job = queue.submit_script(RunDir(place), cluster, "evaluate", command, minutes=minutes, array=array, size=size)
    return _note(place, job, len(folders))


def _minutes(time_limit: str) -> int:
    return math.ceil(parse_duration_s(time_limit) / 60)


def _size(folders: Sequence[EvaluationFolder], cluster: Cluster) -> JobSize:
    """One process that starts its ranks itself, as long as they fit a node, else a process for each rank.

    All jobs of an array have the size of the largest.

    Raises:
        RefusedInput: checkpoints of an array need several nodes and have not the same number of ranks.
    """
    ranks = {_ranks(folder.request()) for folder in folders}
    if max(ranks) <= cluster.gpus_per_node:
        return JobSize(gpus=max(ranks))
    if len(ranks) > 1 or max(ranks) % cluster.gpus_per_node:
        counts, node = ", ".join(map(str, sorted(ranks))), cluster.gpus_per_node
        rule = f"checkpoints of {counts} ranks do not share a job array on nodes of {node} GPUs"
        raise RefusedInput([Fault(path="--as-trained", value=None, rule=rule, where="command line")])
    per_node = cluster.gpus_per_node
    return JobSize(nodes=max(ranks) // per_node, ranks=per_node, gpus=per_node)


def _ranks(request: Request) -> int:
    if not request.as_trained:
        return 1
    layout = read_metadata(Path(request.target)).layout
    return layout.tp * layout.pp
