"""``train|align … --sweep`` and ``jobs sweep``: runs that differ in a few values, started together and compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from colosseum.cli.launching import say_seconds
from colosseum.cli.output import document, note, say, stdout, warn, wide
from colosseum.errors import RunFailed
from colosseum.launch.runs.jobs import Job, jobs_of
from colosseum.launch.runs.request import NewRun, Request
from colosseum.launch.runs.submit import warnings
from colosseum.launch.schedulers.base import Foreground, Queue
from colosseum.launch.schedulers.registry import scheduler_of
from colosseum.launch.stopwatch import part
from colosseum.launch.trials.sweep import (
    Point,
    Sweep,
    Values,
    array_script,
    begin,
    points_of,
    run_here,
    submit,
    words_of,
)
from colosseum.monitor.watch import last_val_loss

STATUS_SCHEMA = "colosseum.sweep-status/1"
DRY_RUN_SCHEMA = "colosseum.sweep-dry-run/1"
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Where one point of a sweep stands."""

    index: int
    point: Point
    job: Job | None
    """None: it was not started yet."""
    val_loss: float | None

    gone: bool = False
    """Its run folder was deleted."""

    @property
    def word(self) -> str:
        if self.job is None:
            return "gone" if self.gone else "planned"
        return self.job.word

    @property
    def why(self) -> str:
        if self.gone:
            return "its run folder was deleted"
        return self.job.why if self.job else ""

    @property
    def loss(self) -> float | None:
        return None if self.job is None else self.job.standing.loss


def launch_sweep(request: Request, words: Sequence[str], at_once: int | None, as_json: bool, *, dry_run: bool) -> None:
    """Begins a sweep, or takes up one that was begun, and ends as its runs end where they run here.

    Raises:
        RunFailed: a run of this machine failed.
        typer.Exit: asked to stop (130).
    """
    with part("compile"):
        points = points_of(request, words, Path.cwd())
    first = points[0][1]
    found = list(dict.fromkeys(w for _, asked in points for w in (*asked.warnings, *_dry_warnings(asked, dry_run))))
    warn(found)
    if dry_run:
        _show_plan(points, at_once, found, as_json)
        return
    with part("checks and folders"):
        sweep = begin(points, at_once)
    scheduler = scheduler_of(first.compiled.recipe.cluster.scheduler)
    if isinstance(scheduler, Queue):
        sweep, now = submit(sweep, scheduler)
        if not as_json:
            runs = f"{len(sweep.points)} runs"
            told = f"submitted as job array {sweep.job}: {runs}" if now else "submitted: nothing, all runs were before"
            say(f"{told}\nnext: colosseum jobs sweep {sweep.name}, jobs status RUN, jobs cancel RUN")
        say_seconds()
        show(sweep, as_json)
        return
    say_seconds()
    stopped = isinstance(scheduler, Foreground) and run_here(sweep, scheduler, note)
    show(sweep, as_json)
    failed = [row for row in _rows(sweep) if row.word in ("failed", "ended")]
    if failed:
        names = ", ".join(row.point.run for row in failed)
        failure = f"{len(failed)} of {len(sweep.points)} runs failed: {names}; see `colosseum jobs status`"
        if not as_json:
            raise RunFailed(failure)
        note(f"error: {failure}")  # stdout has its document
        raise typer.Exit(RunFailed.exit_code)
    if stopped:
        note("stopped; the same command resumes the runs that are not complete")
        raise typer.Exit(EXIT_INTERRUPTED)


def show(sweep: Sweep, as_json: bool) -> None:
    """The table of a sweep's runs, best first."""
    rows = _rows(sweep)
    if as_json:
        head = {"sweep": sweep.name, "folder": str(sweep.root), "job_id": sweep.job, "at_once": sweep.at_once}
        document({"schema": STATUS_SCHEMA, **head, "points": [_as_json(sweep, row) for row in rows]})
        return
    from rich.table import Table
    from rich.text import Text

    keys = list(sweep.points[0].values)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", *keys, "state", "step", "loss", "val loss", "MFU", "run", ""):  # fold: a name cut is no name
        table.add_column(heading, no_wrap=heading in ("state", "step", "loss", "val loss", "MFU"), overflow="fold")
    for row in rows:
        at = row.job.standing if row.job else None
        step = "" if at is None or not at.step else f"{at.step:,}" + (f"/{at.total_steps:,}" if at.total_steps else "")
        figures = ["" if x is None else f"{x:.4f}" for x in (row.loss, row.val_loss)]
        mfu = "" if at is None or at.mfu is None else f"{at.mfu:.1%}"
        cells = (str(row.index), *row.point.values.values(), row.word, step, *figures, mfu, row.point.run)
        table.add_row(*map(Text, (*cells, row.why)))
    wide().print(table)


def best_first(rows: Sequence[Row]) -> list[Row]:
    """By validation loss; those without one after those with one, by training loss; then as they were written."""

    def key(row: Row) -> tuple[float, float, int]:
        val_loss, loss = (math.inf if x is None or math.isnan(x) else x for x in (row.val_loss, row.loss))
        return val_loss, loss, row.index

    return sorted(rows, key=key)


def _rows(sweep: Sweep) -> list[Row]:
    """Each point's newest job; the scheduler is asked once."""
    runs = [sweep.run_of(point) for point in sweep.points]
    jobs, found = jobs_of([run for run in runs if run.root.is_dir()])
    warn(found)
    by_run = {job.run.root.name: job for job in jobs}
    return best_first(
        [
            Row(
                index=i,
                point=point,
                job=by_run.get(point.run),
                val_loss=last_val_loss(run),
                gone=not run.root.is_dir(),
            )
            for i, (point, run) in enumerate(zip(sweep.points, runs, strict=True))
        ]
    )


def _as_json(sweep: Sweep, row: Row) -> dict[str, Any]:
    at = row.job.standing if row.job else None
    return {
        "index": row.index,
        "values": dict(row.point.values),
        "run": str(sweep.run_of(row.point).root),
        "job_id": row.job.submission.job_id if row.job else None,
        "state": row.word,
        "reason": row.why,
        "step": at.step if at else 0,
        "total_steps": at.total_steps if at else None,
        "loss": row.loss,
        "val_loss": row.val_loss,
        "mfu": at.mfu if at else None,
    }


def _dry_warnings(asked: NewRun, dry_run: bool) -> list[str]:
    """What a launch refuses and a dry run only says."""
    return warnings(asked.compiled) if dry_run else []


def _show_plan(
    points: Sequence[tuple[Values, NewRun]], at_once: int | None, found: Sequence[str], as_json: bool
) -> None:
    """What would be started: the points and the array's script; nothing is written."""
    script, first = array_script(points), points[0][1].compiled
    queue = scheduler_of(first.recipe.cluster.scheduler)
    option = queue.array_option(len(points), at_once) if isinstance(queue, Queue) else None
    if as_json:
        rows = [
            {
                "values": dict(values),
                "recipe_hash": asked.compiled.manifest["recipe_hash"],
                "plan": asked.compiled.plan.as_json(),
            }
            for values, asked in points
        ]
        head = {"schema": DRY_RUN_SCHEMA, "sweep": first.recipe.name, "script": script or None, "array": option}
        document({**head, "points": rows, "warnings": list(found)})
        return
    from rich.table import Table
    from rich.text import Text

    table = Table("", *points[0][0], "fits", "step time", "recipe hash", box=None, padding=(0, 2, 0, 0))
    for index, (values, asked) in enumerate(points):
        plan, digest = asked.compiled.plan, str(asked.compiled.manifest["recipe_hash"])[:16]
        step_time = "" if plan.step_time_s is None else f"{plan.step_time_s:.3g} s"
        table.add_row(*map(Text, (str(index), *values.values(), "yes" if plan.fits else "no", step_time, digest)))
    console = stdout()
    console.print(table)
    what = f"array.sbatch, submitted with {option}" if script else f"{first.script_name} of point 0"
    console.out(f"\n# {what}", highlight=False)
    console.out((script or first.script).rstrip("\n"), highlight=False)
    if script:
        at = words_of(points[0][0])
        console.out(f"\n# the job script of point 0: the same command with {at} instead of --sweep", highlight=False)
