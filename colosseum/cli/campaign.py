"""``colosseum campaign run|status|resume``: stages in sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from colosseum.bundle import read_bundle
from colosseum.cli.arguments import recipe_and_overrides
from colosseum.cli.launching import report
from colosseum.cli.output import Cluster, Json, Runs, columns, emit, say, stdout, warn, wide
from colosseum.launch.bundles.compile import Compiled
from colosseum.launch.campaigns.campaign import Campaign, Stage, as_planned, begin, find, plan, remarks
from colosseum.launch.campaigns.file import read_file
from colosseum.launch.campaigns.start import run_here, scheduler_of_campaign, submit
from colosseum.launch.campaigns.status import StageStatus, statuses
from colosseum.launch.runs.jobs import runs_folder
from colosseum.launch.schedulers.base import Foreground, Queue
from colosseum.recipe import derived
from colosseum.units import format_duration

app = typer.Typer(no_args_is_help=True)
File = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE [KEY=VALUE]...", help="A campaign's .yaml or a shipped one, then overrides of every stage."
    ),
]
Begun = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="Name of a started campaign, or its folder.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Plan and compile every stage without starting anything.")]


@app.callback()
def _group() -> None:
    """Run stages in sequence, with a check of the checkpoint between them."""


@app.command()
def run(
    words: File, cluster: Cluster = None, dry_run: DryRun = False, runs: Runs = None, as_json: Json = False
) -> None:
    """Submit every stage of a campaign; on this machine, run them. Stages that were already submitted are skipped."""
    name, overrides = recipe_and_overrides(words)
    file = read_file(name)
    if dry_run:
        root = runs_folder(runs, cluster).resolve()
        planned = plan(file, overrides, cluster=cluster, root=root, base=Path.cwd(), dry=True)
        found = remarks(file, {stage.name: (stage, compiled.recipe) for stage, compiled in planned})
        warn(found)
        emit(as_json, {**as_planned(file, planned), "warnings": found}, lambda: _show_plan(planned))
        return
    campaign = begin(file, overrides, cluster=cluster, runs=runs, base=Path.cwd())
    recipes = {s.name: (s, read_bundle(campaign.run_of(s).bundle).recipe) for s in campaign.stages}
    warn(remarks(file, recipes))
    _go_on(campaign, as_json, again=False)


@app.command()
def resume(campaign: Begun, cluster: Cluster = None, runs: Runs = None, as_json: Json = False) -> None:
    """Resume from the first stage that is neither complete nor queued."""
    _go_on(find(campaign, runs_folder(runs, cluster)), as_json, again=True)


@app.command()
def status(campaign: Begun, cluster: Cluster = None, runs: Runs = None, as_json: Json = False) -> None:
    """Show each stage, the checkpoint that it starts from and its status."""
    _show(find(campaign, runs_folder(runs, cluster)), as_json)


def _go_on(campaign: Campaign, as_json: bool, *, again: bool) -> None:
    scheduler = scheduler_of_campaign(campaign)
    if isinstance(scheduler, Queue):
        campaign, submitted = submit(campaign, scheduler, again=again)
        if not as_json:
            say(f"submitted: {', '.join(submitted) or 'nothing, all stages are complete or already queued'}")
    elif isinstance(scheduler, Foreground):
        run_here(
            campaign,
            scheduler,
            say,
            lambda run, its, bundle: report(run, its, scheduler, bundle.recipe, bundle.manifest, as_json=False),
        )
    _show(campaign, as_json)


def _show(campaign: Campaign, as_json: bool) -> None:
    found = statuses(campaign)
    head = {"schema": "colosseum.campaign-status/1", "campaign": campaign.name, "folder": str(campaign.root)}
    emit(as_json, {**head, "stages": [status.as_json(campaign) for status in found]}, lambda: _show_stages(found))


def _show_stages(found: Sequence[StageStatus]) -> None:
    rows = []
    for status in found:
        stage, steps = status.stage, status.job.status.steps_text if status.job else ""
        cells = (stage.name, stage.source or "", status.gate_word, stage.job or "", status.word, steps, stage.run)
        rows.append((*cells, status.why))
    wide().print(columns(rows, ("stage", "from", "gate", "job", "state", "step", "run", "")))


def _show_plan(planned: Sequence[tuple[Stage, Compiled]]) -> None:
    rows = []
    for stage, compiled in planned:
        plan, steps = compiled.plan, compiled.manifest["total_steps"]
        time = "" if plan.days is None else format_duration(plan.days * 86400)
        nodes = f"{derived.nodes_and_ranks(compiled.recipe)[0]:,}"
        length = "" if steps is None else f"{steps:,}"
        rows.append((stage.name, stage.source or "", compiled.recipe.engine, nodes, plan.layout.text, length, time))
    stdout().print(columns(rows, ("stage", "from", "engine", "nodes", "layout", "steps", "time")))
