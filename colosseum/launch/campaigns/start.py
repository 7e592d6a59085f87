"""Starts the stages of a campaign: in a queue all at once, each after its gate; on this machine one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from colosseum.bundle import LaunchBundle, read_bundle
from colosseum.errors import RunFailed
from colosseum.launch.campaigns.campaign import Campaign, Stage, read
from colosseum.launch.campaigns.converting import importer
from colosseum.launch.campaigns.gate import pass_through
from colosseum.launch.campaigns.status import statuses
from colosseum.launch.runs.jobs import LIVE
from colosseum.launch.runs.submit import locked, note_submission, start
from colosseum.launch.schedulers.base import Foreground, Queue, Say, Scheduler, Submission
from colosseum.launch.schedulers.registry import scheduler_of
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir
from colosseum.units import parse_duration_s

GATE_COMMAND = "python -P -m colosseum.launch.campaigns.gate"
GATE_MINUTES = 15
Follow = Callable[[RunDir, Submission, LaunchBundle], None]


def scheduler_of_campaign(campaign: Campaign) -> Scheduler:
    """The scheduler of the cluster, which all stages share."""
    return scheduler_of(read_bundle(campaign.run_of(campaign.stages[0]).bundle).recipe.cluster.scheduler)


def submit(campaign: Campaign, queue: Queue, *, again: bool) -> tuple[Campaign, list[str]]:
    """Submits what is not submitted yet; the campaign after it, and the names of the stages submitted.

    Args:
        again: also the first stage that is neither complete nor queued, and all after it.

    Raises:
        RefusedInput: the queue refuses a job.
    """
    with locked(campaign.root):
        campaign = read(campaign.root)
        by_stage = {status.stage.name: status for status in statuses(campaign, must_answer=True)}
        submitted: list[str] = []
        for index, stage in enumerate(campaign.stages):
            run, status = campaign.run_of(stage), by_stage[stage.name]
            on_its_way = status.word in (*LIVE, "done") or (stage.job is not None and not again)
            if on_its_way and stage.source not in submitted:
                continue
            if status.job is not None and status.word in LIVE:  # it waits for a job that no longer exists
                queue.cancel(status.job.submission.job_id)
            recipe = read_bundle(run.bundle).recipe
            if stage.job is None:
                queue.check(run, recipe)
            else:
                run.forgive_attempts()
            jobs = {s.name: s.job for s in campaign.stages}
            after: list[str] = []
            gate_job = None
            if stage.source is not None:
                before = jobs[stage.source]
                waits = [before] if before and by_stage[stage.source].word != "done" else []
                run.gate.unlink(missing_ok=True)
                gate_job = queue.submit_script(
                    run, recipe.cluster, "gate", GATE_COMMAND, minutes=_minutes(campaign, stage, recipe), after=waits
                )
                after = [gate_job]
            submission = queue.submit(run, after=after)
            note_submission(run, submission)
            stages = list(campaign.stages)
            stages[index] = replace(stage, gate_job=gate_job, job=submission.job_id)
            campaign = replace(campaign, stages=tuple(stages))
            campaign.write()
            submitted.append(stage.name)
        return campaign, submitted


def _minutes(campaign: Campaign, stage: Stage, recipe: Recipe) -> int:
    """Time limit of a stage's gate: a few minutes, or the stage's own where it expands or converts a checkpoint."""
    before = next(s for s in campaign.stages if s.name == stage.source)
    its = read_bundle(campaign.run_of(before).bundle).recipe
    if its.model.num_layers >= recipe.model.num_layers and not importer(its.engine, recipe.engine):
        return GATE_MINUTES
    return max(GATE_MINUTES, math.ceil(parse_duration_s(recipe.resources.time_limit) / 60))


def run_here(campaign: Campaign, scheduler: Foreground, say: Say, follow: Follow) -> None:
    """Runs each stage that is not complete, after its gate.

    Args:
        follow: follows a stage to its end; raises RunFailed if it fails.

    Raises:
        RunFailed: a gate refused.
    """
    for stage in campaign.stages:
        run = campaign.run_of(stage)
        if run.is_complete():
            continue
        say(f"stage {stage.name}")
        if stage.source is not None and not (verdict := pass_through(run)).passed:
            raise RunFailed(f"stage {stage.name} cannot start: {'; '.join(verdict.faults)}")
        bundle = read_bundle(run.bundle)
        follow(run, start(run, bundle.recipe, scheduler), bundle)
