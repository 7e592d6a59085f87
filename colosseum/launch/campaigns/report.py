"""A campaign as text: its plan before it starts, its stages after."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from colosseum.console import Listing, columns
from colosseum.launch.bundles.compile import Compiled
from colosseum.launch.campaigns.campaign import Stage
from colosseum.launch.campaigns.status import StageStatus
from colosseum.recipe import derived
from colosseum.units import format_duration


def plan_text(planned: Sequence[tuple[Stage, Compiled]]) -> Table:
    """A line for each compiled stage."""
    rows = []
    for stage, compiled in planned:
        plan, steps = compiled.plan, compiled.manifest["total_steps"]
        time = "" if plan.days is None else format_duration(plan.days * 86400)
        nodes = f"{derived.nodes_and_ranks(compiled.recipe)[0]:,}"
        length = "" if steps is None else f"{steps:,}"
        rows.append((stage.name, stage.source or "", compiled.recipe.engine, nodes, plan.layout.text, length, time))
    return columns(rows, ("stage", "from", "engine", "nodes", "layout", "steps", "time"))


def stages_text(statuses: Sequence[StageStatus]) -> Listing:
    """A line for each stage, and why it is held or failed."""
    rows = []
    for status in statuses:
        stage, steps = status.stage, status.job.status.steps_text if status.job else ""
        rows.append((stage.name, stage.source or "", status.gate_word, stage.job or "", status.word, steps, stage.run))
    return Listing(
        headings=("stage", "from", "gate", "job", "state", "step", "run"),
        rows=rows,
        notes=[status.why for status in statuses],
        optional=("job", "gate", "from"),
    )
