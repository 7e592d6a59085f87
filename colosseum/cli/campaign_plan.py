"""``colosseum campaign run --dry-run``: every stage, planned and compiled: what it begins from, how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colosseum.cli.output import document, stdout, warn
from colosseum.launch.bundles.compile import Compiled
from colosseum.launch.campaigns.campaign import CampaignFile, Stage, plan, remarks
from colosseum.launch.runs.submit import runs_root
from colosseum.recipe import derived
from colosseum.recipe.load import load_cluster
from colosseum.units import format_duration

SCHEMA = "colosseum.campaign-plan/1"


def show(file: CampaignFile, words: Sequence[str], cluster: str | None, runs: Path | None, as_json: bool) -> None:
    """Prints it; inputs need not be there."""
    root = runs_root(runs, load_cluster(cluster)).resolve()
    planned = plan(file, words, cluster=cluster, root=root, base=Path.cwd(), dry=True)
    found = remarks(file, {stage.name: (stage, compiled.recipe) for stage, compiled in planned})
    warn(found)
    if as_json:
        stages = [_row(*entry) for entry in planned]
        document({"schema": SCHEMA, "campaign": file.name, "stages": stages, "warnings": found})
        return
    from rich.table import Table

    table = Table("stage", "from", "engine", "nodes", "layout", "steps", "time", box=None, padding=(0, 2, 0, 0))
    for stage, compiled in planned:
        row, layout = _row(stage, compiled), compiled.plan.layout.text
        time = "" if row["days"] is None else format_duration(row["days"] * 86400)
        steps = "" if row["total_steps"] is None else f"{row['total_steps']:,}"
        cells = (row["stage"], row["from"] or "", row["engine"], f"{row['nodes']:,}", layout, steps, time)
        table.add_row(*cells)
    stdout().print(table)


def _row(stage: Stage, compiled: Compiled) -> dict[str, Any]:
    return {
        "stage": stage.name,
        "from": stage.source,
        "recipe": stage.recipe,
        "engine": compiled.recipe.engine,
        "recipe_hash": compiled.manifest["recipe_hash"],
        "nodes": derived.nodes_and_ranks(compiled.recipe)[0],
        "total_steps": compiled.manifest["total_steps"],
        "days": compiled.plan.days,
        "checkpoint_load": list(compiled.recipe.checkpoint.load),
    }
