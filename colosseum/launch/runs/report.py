"""Runs and their attempts as text: a list, the facts of one, its history."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from colosseum.bundle import read_bundle
from colosseum.console import Listing, columns
from colosseum.launch.runs.jobs import LIVE, Job
from colosseum.monitor.watch import Attempt, age_s
from colosseum.recipe import derived
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir
from colosseum.units import format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

STYLES = {
    "running": "green",
    "complete": "bold green",
    "failed": "bold red",
    "unreadable": "bold red",
    "cancelled": "yellow",
    "stopped": "yellow",
}
ENDED_SHOWN = 20


def jobs_text(jobs: Sequence[Job], root: Path, *, everything: bool) -> list[RenderableType]:
    """Live runs and the newest ended ones under ``root``, or ``everything``."""
    if not jobs:
        return [f"no runs under {root}"]
    ended = [job for job in jobs if job.word not in LIVE]
    hidden = 0 if everything else max(0, len(ended) - ENDED_SHOWN)
    shown = [job for job in jobs if job not in ended[:hidden]]
    listing = Listing(
        headings=("run", "job", "state", "step", "loss", "MFU", "left", "saved"),
        rows=[_cells(job) for job in shown],
        notes=[job.why for job in shown],
        optional=("left", "job", "loss", "saved", "MFU"),
    )
    return [listing, *([f"{hidden} older ended runs are hidden: --all shows them"] if hidden else [])]


def _cells(job: Job) -> Sequence[str | Text]:
    at = job.status
    return (
        job.run.root.name,
        job.submission.job_id,
        state_text(job),
        at.steps_text,
        "" if at.loss is None else f"{at.loss:.4f}",
        "" if at.mfu is None else f"{at.mfu:.1%}",
        format_duration(at.left_s) if at.left_s is not None and job.word == "running" else "",
        _saved(job) if job.word in LIVE else (f"{at.saved_step:,}" if at.saved_step else ""),
    )


def state_text(job: Job, reason: str = "") -> Text:
    """The word for its state, coloured."""
    from rich.text import Text

    return Text(job.word + reason, style=STYLES.get(job.word, ""))


def _saved(job: Job) -> str:
    age = age_s(job.status.saved_unix_s)
    return "" if age is None else f"{job.status.saved_step:,}, {format_duration(age)} ago"


def job_text(job: Job) -> Table:
    """All that is known of one run."""
    at = job.status
    rows: list[tuple[str, str | Text]] = [("run", str(job.run.root))]
    if job.submission.job_id:
        rows.append(("job", f"{job.submission.job_id} ({job.submission.scheduler})"))
    rows.append(("state", state_text(job, f": {job.why}" if job.why else "")))
    if job.state.nodes:
        rows.append(("nodes", job.state.nodes))
    if at.step:
        heard = age_s(at.heard_unix_s)
        of = f" of {at.total_steps:,}" if at.total_steps else ""
        rows.append(("step", f"{at.step:,}{of}" + (f", {format_duration(heard)} ago" if heard is not None else "")))
    rows += [("loss", f"{at.loss:.4f}")] if at.loss is not None else []
    if at.step_time_s is not None:
        predicted = at.predicted_step_time_s
        beside = (
            ""
            if predicted is None
            else f" (predicted {predicted:.3g} s, measured/predicted {at.step_time_s / predicted:.2f})"
        )
        rows.append(("step time", f"{at.step_time_s:.3g} s{beside}"))
    rows += [("tokens/s", f"{at.tokens_per_s:,.0f}")] if at.tokens_per_s is not None else []
    rows += [("MFU", f"{at.mfu:.1%}")] if at.mfu is not None else []
    if at.left_s is not None and job.word == "running":
        rows.append(("left", format_duration(at.left_s)))
    rows.append(("saved", _saved(job) or "no checkpoint yet"))
    if job.state.end_unix_s is not None and job.word in ("running", "starting"):
        rows.append(("time limit", f"in {format_duration(max(0.0, job.state.end_unix_s - time.time()))}"))
    if job.attempt is not None and job.attempt.number:
        rows.append(("attempts", f"{job.attempt.number + 1}: colosseum jobs history {job.run.root.name}"))
    return columns(rows)


def attempts_text(run: RunDir, attempts: Sequence[Attempt]) -> RenderableType:
    """A line for each attempt."""
    if not attempts:
        return f"{run.root.name} has not been started yet"
    rows = []
    for a in attempts:
        began = "" if a.began_unix_s is None else time.strftime("%m-%d %H:%M:%S", time.gmtime(a.began_unix_s))
        figures = [f"{a.from_step:,}", *("" if n is None else f"{n:,}" for n in (a.last_step, a.lost_steps))]
        ended = (a.kind or "wrote no outcome.json").replace("_", " ")
        rows.append((str(a.number), a.job_id, a.nodes, began, *figures, ended, a.reason))
    headings = ("", "job", "nodes", "started (UTC)", "from", "to", "lost", "ended", "")
    return columns(rows, headings)


def size_text(run: RunDir, recipe: Recipe) -> str:
    """A job's nodes, layout and predicted time, in one line."""
    plan = read_bundle(run.bundle).plan
    nodes, ranks = derived.nodes_and_ranks(recipe)
    text = f"{nodes:,} node{'s' * (nodes > 1)} x {ranks} rank{'s' * (ranks > 1)}, {plan.layout.text}"
    if plan.step_time_s is not None:
        text += f", {format_duration(plan.step_time_s)} per step"
    return text if plan.days is None else f"{text}, {format_duration(plan.days * 86400)} in total"
