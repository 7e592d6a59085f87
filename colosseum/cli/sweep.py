"""``train|align … --sweep`` and ``jobs sweep``: runs that differ in a few values, started together and compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from colosseum.cli.launching import EXIT_INTERRUPTED, say_seconds
from colosseum.cli.output import emit, note, say, warn
from colosseum.errors import RunFailed
from colosseum.launch.runs.request import Request
from colosseum.launch.runs.submit import warnings
from colosseum.launch.schedulers.base import Foreground, Queue
from colosseum.launch.schedulers.registry import scheduler_of
from colosseum.launch.stopwatch import part
from colosseum.launch.trials.comparison import compared
from colosseum.launch.trials.report import plan_text, rows_text
from colosseum.launch.trials.sweep import (
    Sweep,
    as_planned,
    begin,
    points_of,
    run_here,
    submit,
)

STATUS_SCHEMA = "colosseum.sweep-status/1"


def launch_sweep(request: Request, words: Sequence[str], at_once: int | None, as_json: bool, *, dry_run: bool) -> None:
    """Begins a sweep, or takes up one that was begun, and ends as its runs end where they run here.

    Raises:
        RunFailed: a run of this machine failed.
        typer.Exit: asked to stop (130).
    """
    with part("compile"):
        points = points_of(request, words, Path.cwd())
    # What a launch refuses, a dry run only says.
    found = [w for _, new in points for w in (*new.warnings, *(warnings(new.compiled) if dry_run else ()))]
    found = list(dict.fromkeys(found))
    warn(found)
    if dry_run:
        emit(as_json, {**as_planned(points, at_once), "warnings": found}, lambda: plan_text(points, at_once))
        return
    with part("checks and folders"):
        sweep = begin(points, at_once)
    scheduler = scheduler_of(points[0][1].compiled.recipe.cluster.scheduler)
    if isinstance(scheduler, Queue):
        sweep, now = submit(sweep, scheduler)
        if not as_json:
            runs = f"{len(sweep.points)} runs"
            text = f"submitted as job array {sweep.job}: {runs}" if now else "submitted: nothing, all runs were before"
            say(f"{text}\nnext: colosseum jobs sweep {sweep.name}, jobs status RUN, jobs cancel RUN")
        say_seconds()
        show(sweep, as_json)
    elif isinstance(scheduler, Foreground):
        say_seconds()
        stopped = run_here(sweep, scheduler, note)
        show(sweep, as_json, must_end=True)
        if stopped:
            note("stopped; the same command resumes the runs that are not complete")
            raise typer.Exit(EXIT_INTERRUPTED)


def show(sweep: Sweep, as_json: bool, *, must_end: bool = False) -> None:
    """The table of a sweep's runs, best first.

    Args:
        must_end: its runs have come to their end here.

    Raises:
        RunFailed, typer.Exit: they ``must_end``, and one failed.
    """
    rows, found = compared(sweep)
    warn(found)
    failed = [row.point.run for row in rows if must_end and row.word in ("failed", "ended")]
    of = f"{len(failed)} of {len(sweep.points)} runs failed"
    failure = RunFailed(f"{of}: {', '.join(failed)}; see `colosseum jobs status`") if failed else None
    head = {"schema": STATUS_SCHEMA, "sweep": sweep.name, "folder": str(sweep.root), "job_id": sweep.job}
    result = {**head, "at_once": sweep.at_once, "points": [row.as_json(sweep) for row in rows]}
    emit(as_json, result, lambda: rows_text(rows), failure)
