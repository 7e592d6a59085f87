"""Trials as text: a sweep's runs before they start and compared after, a rehearsal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from colosseum.console import Listing, columns
from colosseum.launch.runs.request import NewRun
from colosseum.launch.trials.comparison import Row
from colosseum.launch.trials.rehearsal import Rehearsal
from colosseum.launch.trials.sweep import Values, array_option, array_script, overrides_of

_STYLES = {"kept": "green", "scaled": "yellow", "dropped": "red"}


def plan_text(points: Sequence[tuple[Values, NewRun]], at_once: int | None) -> list[RenderableType]:
    """The points and the array's script."""
    script, first = array_script(points), points[0][1].compiled
    rows = []
    for index, (values, new) in enumerate(points):
        plan, digest = new.compiled.plan, str(new.compiled.manifest["recipe_hash"])[:16]
        step_time = "" if plan.step_time_s is None else f"{plan.step_time_s:.3g} s"
        rows.append((str(index), *values.values(), "yes" if plan.fits else "no", step_time, digest))
    option = array_option(points, at_once)
    what = f"array.sbatch, submitted with {option}" if script else f"{first.script_name} of point 0"
    text = f"\n# {what}\n{(script or first.script).rstrip()}"
    if script:
        at = overrides_of(points[0][0])
        text += f"\n\n# the job script of point 0: the same command with {at} instead of --sweep"
    return [columns(rows, ("", *points[0][0], "fits", "step time", "recipe hash")), text]


def rows_text(rows: Sequence[Row]) -> Listing:
    """A line for each run, in the order given."""
    cells = []
    for row in rows:
        at = row.job.status if row.job else None
        figures = ["" if x is None else f"{x:.4f}" for x in (row.loss, row.val_loss)]
        mfu = "" if at is None or at.mfu is None else f"{at.mfu:.1%}"
        steps = at.steps_text if at else ""
        cells.append((str(row.index), *row.point.values.values(), row.word, steps, *figures, mfu, row.point.run))
    return Listing(
        headings=("", *rows[0].point.values, "state", "step", "loss", "val loss", "MFU", "run"),
        rows=cells,
        notes=[row.why for row in rows],
        optional=("run", "step", "MFU"),
    )


def rehearsal_text(result: Rehearsal) -> list[RenderableType]:
    """What the rehearsal changed of the recipe, its checks, its verdict."""
    decided = [(d.what, d.before, d.after, Text(d.verdict, style=_STYLES[d.verdict]), d.why) for d in result.decisions]
    marks = {True: Text("passed", style="green"), False: Text("FAILED", style="bold red")}
    checks = [(c.name, marks[c.passed], c.detail) for c in result.checks]
    word = "passed" if result.passed else "failed"
    return [
        columns(decided, ("", "recipe", "here", "", "why"), padding=(0, 1), pad_edge=False),
        "",
        columns(checks, padding=(0, 1), pad_edge=False),
        f"\nrehearsal of {result.recipe} {word} in {result.time_s:.0f} s: {result.runs[0].root}",
    ]
