"""A run that exists: started again, by one command at a time, and cancelled."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from colosseum.bundle import LaunchBundle, read_bundle
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.launch.runs.exclusive import exclusively
from colosseum.launch.runs.jobs import LIVE, Job, job_if_any, job_of
from colosseum.launch.runs.submit import modes_of, start
from colosseum.launch.schedulers.base import Foreground, Queue, Say, Scheduler, Submission
from colosseum.launch.schedulers.registry import scheduler_of
from colosseum.launch.schedulers.scripts import stop_margin_s
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, saved_steps
from colosseum.units import format_duration

POLL_S = 1.0
SAY_EVERY_S = 10.0
GRACE_S = 30.0
"""Slurm's default of KillWait."""
CLEANED_UP_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """What ``requeue`` did."""

    submission: Submission | None
    """The new job; None = the job that runs saves and starts again."""
    in_background: bool
    """It runs on this machine, and no command stays with it."""


def resume(run: RunDir, recipe: Recipe, scheduler: Scheduler) -> Submission:
    """One more attempt of a run that nobody trains, in its own folder.

    Raises:
        RefusedInput: it is complete or runs, a job of it waits, or another command is starting it.
        EnvironmentFault: its scheduler does not say whether it runs.
    """
    before = job_if_any(run, must_answer=True)
    with modes_of(run.root), exclusively(run.root):
        job = _unchanged(run, before)
        _refuse_complete(run)
        if job is not None and job.word in LIVE:
            raise RefusedInput(
                f"job {job.submission.job_id} of {run.root.name} is {job.word}; nothing was started: `colosseum jobs "
                f"requeue {run.root.name}` lets it save and starts it again, `jobs cancel` ends it"
            )
        return start(run, recipe, scheduler)


def requeue(run: RunDir, say: Say, *, typed_unix_s: float = math.inf) -> Requeued:
    """Starts a run again: one that runs saves first; in a queue it keeps its job id.

    Args:
        typed_unix_s: when the command was typed: what another one has started since is left alone.

    Raises:
        RefusedInput: it is complete, waits to start anyway, or another command is starting it.
        EnvironmentFault: its scheduler does not say whether it runs.
    """
    before, bundle = job_of(run, must_answer=True), read_bundle(run.bundle)
    with modes_of(run.root), exclusively(run.root):
        job = _unchanged(run, before)
        assert job is not None
        _refuse_complete(run)
        name, its = run.root.name, job.submission
        if job.word == "unknown":
            raise RefusedInput(f"{name}: {job.state.detail}; start it again there")
        if job.word == "waiting":
            raise RefusedInput(f"job {its.job_id} of {name} is already waiting to start: {job.state.detail}")
        if job.word in LIVE and typed_unix_s < its.time_unix_s < time.time():
            raise RefusedInput(f"another command has just started {name} as job {its.job_id}; nothing was started")
        if job.word in LIVE:
            runs_in = scheduler_of(its.scheduler)
            if isinstance(runs_in, Queue):
                runs_in.save_and_restart(its.job_id)
                return Requeued(submission=None, in_background=False)
            _stop_here(run, bundle, say)
            _refuse_complete(run)
        run.forgive_attempts()
        scheduler = scheduler_of(bundle.recipe.cluster.scheduler)
        submission = start(run, bundle.recipe, scheduler)
        return Requeued(submission=submission, in_background=isinstance(scheduler, Foreground))


def _unchanged(run: RunDir, before: Job | None) -> Job | None:
    """The run's job now, in our turn.

    Raises:
        RefusedInput: another command started the run while this one waited for its turn.
    """
    job = job_if_any(run, must_answer=True)
    if job is not None and (before is None or job.submission.job_id != before.submission.job_id):
        raise RefusedInput(
            f"another command has just started {run.root.name} as job {job.submission.job_id}; nothing was started"
        )
    return job


def _refuse_complete(run: RunDir) -> None:
    if run.is_complete():
        raise RefusedInput(f"{run.root.name} is complete; to train further use --from {run.root.name} train.steps=N")


def cancel(run: RunDir, say: Say) -> str:
    """Ends a run's job, and every other job of it; waits for the save. How it ended, as a sentence.

    Raises:
        RefusedInput: it has ended already, or cannot be reached from here.
        EnvironmentFault: its scheduler does not answer.
    """
    job = job_of(run)
    name, its = run.root.name, job.submission
    if job.unreadable:
        raise RefusedInput(f"{name}: {job.unreadable}; nothing was cancelled")
    scheduler = scheduler_of(its.scheduler)
    if job.word == "unknown":
        unknown = f"{name}: {job.state.detail}; nothing was cancelled"
        raise EnvironmentFault(unknown) if isinstance(scheduler, Queue) else RefusedInput(unknown)
    if job.word not in LIVE:
        raise RefusedInput(f"{_ended(job)}; nothing to cancel")
    if isinstance(scheduler, Queue):
        ended = _cancel_jobs(scheduler, job, say)
    else:
        ended = _stop_here(run, read_bundle(run.bundle), say)
    return f"{_cancelled(job)}: {_how(run, its.job_id, job.word) if ended else 'it has not ended yet'}"


def _cancelled(job: Job) -> str:
    others = "".join(f" and job {one.job_id}" for one in job.also)
    return f"cancelled job {job.submission.job_id}{others} of {job.run.root.name}"


def _ended(job: Job) -> str:
    """What is known of a job that does not live."""
    name, job_id = job.run.root.name, job.submission.job_id
    if job.word != "ended" or job.submission.scheduler == "local":
        return f"job {job_id} of {name} has ended: {job.word}"
    # Slurm knows nothing of it: the run's own folder is all there is.
    last = job.attempt
    if last is None:
        known = "the run has begun no attempt"
    else:
        known = f"attempt {last.number} {'wrote no outcome.json' if last.kind is None else f'ended {last.kind}'}"
    return f"job {job_id} of {name} is unknown to Slurm ({job.state.detail}); {known}, {_newest_checkpoint(job.run)}"


def _cancel_jobs(queue: Queue, job: Job, say: Say) -> bool:
    """Cancels the run's jobs and waits for their end; False = one has not ended in time."""
    ids = [job.submission.job_id, *(one.job_id for one in job.also if one.scheduler == job.submission.scheduler)]
    for job_id in ids:
        queue.cancel(job_id)
    grace_s = queue.grace_s() or GRACE_S
    began, told_s = time.monotonic(), -SAY_EVERY_S
    while any(state.phase in ("waiting", "running") for state in queue.states(ids).values()):
        waited_s = time.monotonic() - began
        if waited_s > grace_s + CLEANED_UP_WITHIN_S:
            return False
        if job.word != "waiting" and waited_s - told_s >= SAY_EVERY_S:
            told_s, grace = waited_s, format_duration(grace_s)
            say(f"waiting for the ranks to save: {format_duration(int(waited_s))} (Slurm kills them after {grace})")
        time.sleep(POLL_S)
    return True


def _stop_here(run: RunDir, bundle: LaunchBundle, say: Say) -> bool:
    scheduler = scheduler_of("local")
    assert isinstance(scheduler, Foreground)
    scheduler.stop(run, stop_margin_s(bundle.recipe, bundle.plan), say)
    return True


def _how(run: RunDir, job_id: str, word: str) -> str:
    """How a job that was cancelled has ended."""
    if word == "waiting":
        return f"it had not started, {_newest_checkpoint(run)}"
    attempt = run.attempt_of(job_id)
    outcome = None if attempt is None else attempt.read_outcome()
    if outcome is not None and outcome.kind == "completed":
        return f"it was complete at step {outcome.step:,} before it could be cancelled"
    if outcome is not None and outcome.kind == "saved":
        step = outcome.last_saved_step
        return f"saved at step {step:,}" if step else "stopped before there was anything to save"
    return f"killed without a save, {_newest_checkpoint(run)}"


def _newest_checkpoint(run: RunDir) -> str:
    steps = saved_steps(run.checkpoints)
    return f"its newest checkpoint is of step {steps[-1]:,}" if steps else "it has no checkpoint"
