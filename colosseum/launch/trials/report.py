"""A sweep as text: its runs before they start, and compared after."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from colosseum.console import Listing, columns
from colosseum.launch.runs.request import NewRun
from colosseum.launch.trials.comparison import Row
from colosseum.launch.trials.sweep import Values, array_option, array_script, words_of


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
        at = words_of(points[0][0])
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
