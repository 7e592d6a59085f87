"""Starts a run and, on this machine, follows it to its end."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import typer

from colosseum.cli.output import emit, note, say, warn
from colosseum.errors import RunFailed
from colosseum.launch.runs.control import resume
from colosseum.launch.runs.ending import ending_of
from colosseum.launch.runs.report import size_text
from colosseum.launch.runs.request import Continued, NewRun, placing
from colosseum.launch.runs.submit import launch
from colosseum.launch.schedulers.base import Foreground, Scheduler, Submission
from colosseum.launch.schedulers.registry import scheduler_of
from colosseum.launch.stopwatch import reading
from colosseum.launch.trials.shakedown import submit_shakedown
from colosseum.monitor.progress import Progress
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir

RUN_SCHEMA = "colosseum.run/1"
EXIT_INTERRUPTED = 130


def launch_new(new: NewRun, as_json: bool, *, shakedown: bool = False) -> None:
    """Makes the run folder, starts it and ends as it ends; with a shakedown, only once that has passed."""
    warn(new.warnings)
    scheduler = scheduler_of(new.compiled.recipe.cluster.scheduler)
    with placing(new.origins):
        after = [submit_shakedown(new, scheduler, note)] if shakedown else []
        run, submission = launch(new.compiled, scheduler, new.runs, shown=new.shown, after=after)
    bundle = new.compiled
    report(run, submission, scheduler, bundle.recipe, bundle.manifest, as_json)


def continue_run(resumed: Continued, as_json: bool) -> None:
    """One more attempt in the run's own folder."""
    scheduler = scheduler_of(resumed.bundle.recipe.cluster.scheduler)
    submission = resume(resumed.run, resumed.bundle.recipe, scheduler)
    report(resumed.run, submission, scheduler, resumed.bundle.recipe, resumed.bundle.manifest, as_json)


def report(
    run: RunDir,
    submission: Submission,
    scheduler: Scheduler,
    recipe: Recipe,
    manifest: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Says what was started; a local run is followed to its end.

    Raises:
        RunFailed: the run failed.
        typer.Exit: it was stopped before its end (130), or it failed (4) and --json has said so.
    """
    result: dict[str, Any] = {
        "schema": RUN_SCHEMA,
        "run": str(run.root),
        "scheduler": submission.scheduler,
        "job_id": submission.job_id,
        "recipe_hash": manifest["recipe_hash"],
        "lineage": manifest.get("lineage"),
    }
    say_seconds()
    if not isinstance(scheduler, Foreground):
        emit(as_json, {**result, "outcome": None}, lambda: _submitted(run, submission, recipe))
        return
    progress = Progress(sys.stderr if as_json else sys.stdout)
    progress.say(f"run {run.root}")
    scheduler.follow(run, submission.job_id, progress.row, note)
    ended = ending_of(run, submission.job_id, recipe)
    result["outcome"] = ended.outcome._asdict() if ended.outcome else None
    failure = None if ended.failure is None else RunFailed(ended.failure)
    emit(as_json, result, lambda: None, failure)
    progress.say(ended.sentence)
    if ended.stopped:
        raise typer.Exit(EXIT_INTERRUPTED)


def _submitted(run: RunDir, submission: Submission, recipe: Recipe) -> None:
    name = run.root.name
    say(f"submitted as job {submission.job_id}: {size_text(run, recipe)}\nrun {run.root}")
    say(f"next: colosseum jobs status {name}, jobs logs -f {name}, jobs cancel {name}")


def say_seconds() -> None:
    """With -v: where the seconds went until now."""
    if (line := reading()) is not None:
        note(line)
