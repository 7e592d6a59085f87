"""The status of each stage of a campaign, from its job, its gate and its run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from colosseum.errors import EnvironmentFault
from colosseum.launch.campaigns.campaign import Campaign, Stage
from colosseum.launch.campaigns.gate import read_gate
from colosseum.launch.runs.jobs import Job, jobs_of, unasked_start
from colosseum.launch.schedulers.base import JobState
from colosseum.launch.schedulers.registry import scheduler_of
from colosseum.monitor.watch import UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatus:
    """The status of one stage."""

    stage: Stage
    job: Job | None
    gate: JobState | None
    word: str
    """done, a job's state, held (the gate refused), waiting, or planned."""
    why: str

    @property
    def gate_word(self) -> str:
        """The result of its gate; empty = it has none, or it is unknown."""
        if self.stage.source is None:
            return ""
        if self.word == "held":
            return "refused"
        if self.gate is None or self.gate.phase == "unknown":
            return "" if self.job is None else "passed" if self.word == "done" else "?"
        return "passed" if self.gate.phase == "completed" else self.gate.phase

    def as_json(self, campaign: Campaign) -> dict[str, Any]:
        stage, at = self.stage, self.job.status if self.job else UNKNOWN
        return {
            "stage": stage.name,
            "from": stage.source,
            "run": str(campaign.run_of(stage).root),
            "gate_job": stage.gate_job,
            "job_id": stage.job,
            "state": self.word,
            "reason": self.why,
            "step": at.step,
            "total_steps": at.total_steps,
        }


def statuses(campaign: Campaign, *, must_answer: bool = False) -> list[StageStatus]:
    """The status of each stage; the scheduler is queried once for the stages and once for the gates.

    Raises:
        EnvironmentFault: the scheduler does not answer, and it ``must_answer``.
    """
    jobs, unasked = jobs_of([campaign.run_of(stage) for stage in campaign.stages])
    if unasked and must_answer:
        raise EnvironmentFault(unasked_start(unasked))
    by_run = {job.run.root.name: job for job in jobs}
    gate_ids = [stage.gate_job for stage in campaign.stages if stage.gate_job]
    gates: Mapping[str, JobState] = {}
    scheduler = next((job.submission.scheduler for job in jobs if not job.unreadable), None)
    if gate_ids and scheduler:
        try:
            gates = scheduler_of(scheduler).states(gate_ids)
        except EnvironmentFault:  # gate.json has most of it
            gates = {}
    return [
        _status(campaign, stage, by_run.get(stage.run), gates.get(stage.gate_job or "")) for stage in campaign.stages
    ]


def _status(campaign: Campaign, stage: Stage, job: Job | None, gate: JobState | None) -> StageStatus:
    run = campaign.run_of(stage)
    verdict = read_gate(run)
    if run.is_complete():
        word, why = "done", ""
    elif verdict is not None and not verdict.passed:
        word, why = "held", "; ".join(verdict.faults)
    elif job is None:
        word, why = "planned", ""
    else:
        word, why = job.word, job.why
    return StageStatus(stage=stage, job=job, gate=gate, word=word, why=why)
