"""``colosseum campaign run|status|resume``: stages in sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colosseum.bundle import read_bundle
from colosseum.cli.arguments import recipe_and_overrides
from colosseum.cli.launching import report
from colosseum.cli.output import Cluster, Json, Runs, emit, say, warn
from colosseum.launch.campaigns.campaign import Campaign, as_planned, begin, find, plan, remarks
from colosseum.launch.campaigns.file import read_file
from colosseum.launch.campaigns.report import plan_text, stages_text
from colosseum.launch.campaigns.start import run_here, scheduler_of_campaign, submit
from colosseum.launch.campaigns.status import statuses
from colosseum.launch.runs.jobs import runs_folder
from colosseum.launch.schedulers.base import Foreground, Queue

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
        emit(as_json, {**as_planned(file, planned), "warnings": found}, lambda: plan_text(planned))
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
    emit(as_json, {**head, "stages": [status.as_json(campaign) for status in found]}, lambda: stages_text(found))
