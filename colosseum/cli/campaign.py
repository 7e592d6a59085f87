"""``colosseum campaign run|status|resume``: stages that follow one another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colosseum.cli.output import Cluster, Json, Runs, document, say, warn, wide

if TYPE_CHECKING:
    from colosseum.launch.campaigns.campaign import Campaign, StageStatus

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
    """Run stages one after the other, with a gate at each hand-over."""


@app.command()
def run(
    words: File, cluster: Cluster = None, dry_run: DryRun = False, runs: Runs = None, as_json: Json = False
) -> None:
    """Submit every stage of a campaign; on this machine, run them. What was submitted is not submitted again."""
    from colosseum.bundle import read_bundle
    from colosseum.cli.words import recipe_and_overrides
    from colosseum.launch.campaigns.campaign import begin, read_file, remarks

    name, overrides = recipe_and_overrides(words)
    file = read_file(name)
    if dry_run:
        from colosseum.cli.campaign_plan import show

        show(file, overrides, cluster, runs, as_json)
        return
    campaign = begin(file, overrides, cluster=cluster, runs=runs, base=Path.cwd())
    recipes = {s.name: (s, read_bundle(campaign.run_of(s).bundle).recipe) for s in campaign.stages}
    warn(remarks(file, recipes))
    _go_on(campaign, as_json, again=False)


@app.command()
def resume(campaign: Begun, cluster: Cluster = None, runs: Runs = None, as_json: Json = False) -> None:
    """Go on with the first stage that is neither done nor on its way."""
    _go_on(_find(campaign, cluster, runs), as_json, again=True)


@app.command()
def status(campaign: Begun, cluster: Cluster = None, runs: Runs = None, as_json: Json = False) -> None:
    """Show the stages, what each begins from and where it stands."""
    _show(_find(campaign, cluster, runs), as_json)


def _find(name: str, cluster: str | None, runs: Path | None) -> Campaign:
    from colosseum.launch.campaigns.campaign import find
    from colosseum.launch.runs.submit import runs_root
    from colosseum.recipe.load import load_cluster

    return find(name, runs_root(runs, load_cluster(cluster)))


def _go_on(campaign: Campaign, as_json: bool, *, again: bool) -> None:
    from colosseum.bundle import read_bundle
    from colosseum.launch.campaigns.campaign import submit
    from colosseum.launch.schedulers.base import Queue
    from colosseum.launch.schedulers.registry import scheduler_of

    queue = scheduler_of(read_bundle(campaign.run_of(campaign.stages[0]).bundle).recipe.cluster.scheduler)
    if isinstance(queue, Queue):
        campaign, submitted = submit(campaign, queue, again=again)
        if not as_json:
            say(f"submitted: {', '.join(submitted) or 'nothing, all stages are complete or already queued'}")
    else:
        _run_here(campaign)
    _show(campaign, as_json)


def _run_here(campaign: Campaign) -> None:
    """Without a queue: each stage is followed to its end.

    Raises:
        RunFailed: a gate refused, or a stage failed.
    """
    from colosseum.bundle import read_bundle
    from colosseum.cli.launching import report
    from colosseum.errors import RunFailed
    from colosseum.launch.campaigns.gate import pass_through
    from colosseum.launch.runs.submit import start
    from colosseum.launch.schedulers.registry import scheduler_of

    for stage in campaign.stages:
        place = campaign.run_of(stage)
        if place.is_complete():
            continue
        say(f"stage {stage.name}")
        if stage.source is not None and not (verdict := pass_through(place)).passed:
            raise RunFailed(f"stage {stage.name} cannot start: {'; '.join(verdict.faults)}")
        bundle = read_bundle(place.bundle)
        scheduler = scheduler_of(bundle.recipe.cluster.scheduler)
        report(place, start(place, bundle.recipe, scheduler), scheduler, bundle.recipe, bundle.manifest, as_json=False)


def _show(campaign: Campaign, as_json: bool) -> None:
    from colosseum.launch.campaigns.campaign import statuses

    found = statuses(campaign)
    if as_json:
        rows = [_as_json(campaign, status) for status in found]
        head = {"schema": "colosseum.campaign-status/1", "campaign": campaign.name, "folder": str(campaign.root)}
        document({**head, "stages": rows})
        return
    from rich.table import Table
    from rich.text import Text

    table = Table("stage", "from", "gate", "job", "state", "step", "run", "", box=None, padding=(0, 2, 0, 0))
    for status in found:
        at = status.job.standing if status.job else None
        step = "" if at is None or not at.step else f"{at.step:,}" + (f"/{at.total_steps:,}" if at.total_steps else "")
        stage = status.stage
        cells = (stage.name, stage.source or "", _gate_word(status), stage.job or "", status.word, step, stage.run)
        table.add_row(*map(Text, (*cells, status.why)))
    wide().print(table)


def _gate_word(status: StageStatus) -> str:
    if status.stage.source is None:
        return ""
    if status.word == "held":
        return "refused"
    if status.gate is None or status.gate.phase == "unknown":
        return "" if status.job is None else "passed" if status.word == "done" else "?"
    return "passed" if status.gate.phase == "completed" else status.gate.phase


def _as_json(campaign: Campaign, status: StageStatus) -> dict[str, Any]:
    stage, at = status.stage, status.job.standing if status.job else None
    return {
        "stage": stage.name,
        "from": stage.source,
        "run": str(campaign.run_of(stage).root),
        "gate_job": stage.gate_job,
        "job_id": stage.job,
        "state": status.word,
        "reason": status.why,
        "step": at.step if at else 0,
        "total_steps": at.total_steps if at else None,
    }
