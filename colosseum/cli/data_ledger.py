"""``colosseum data ledger``: what a run or campaign was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colosseum.cli.output import Cluster, Json, Runs, columns, emit, say, stdout
from colosseum.data.ledger import RunUse, by_tag, lineage_use
from colosseum.errors import RefusedInput
from colosseum.launch.campaigns import campaign
from colosseum.launch.runs.jobs import runs_folder
from colosseum.launch.runs.submit import find_run
from colosseum.rundir import RunDir
from colosseum.units import format_count


def ledger(
    name: Annotated[
        str, typer.Argument(metavar="RUN[@STEP]|CAMPAIGN", help="Run, optionally at a checkpoint, or campaign.")
    ],
    cluster: Cluster = None,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Show tokens and epochs by source and tag, planned and consumed, from a checkpoint back to shards and licences."""
    run, step = _find(name, runs_folder(runs, cluster))
    found = lineage_use(run, step)
    tags = by_tag(found)
    data = {
        "schema": "colosseum.ledger/1",
        "consumed_tokens": sum(use.consumed for use in found),
        "tags": tags,
        "runs": [use.as_json() for use in found],
    }
    emit(as_json, data, lambda: _print(found, tags))


def _find(name: str, runs: Path) -> tuple[RunDir, int | None]:
    text, _, step = name.partition("@")
    if step and not step.isdecimal():
        raise RefusedInput(f"{name}: after @ stands the step of a checkpoint")
    try:
        return find_run(text, runs), int(step) if step else None
    except RefusedInput as refused:
        try:
            begun = campaign.find(name, runs)
        except RefusedInput:
            raise refused from None
    started = [begun.run_of(stage) for stage in begun.stages if begun.run_of(stage).ledger.is_file()]
    if not started:
        raise RefusedInput(f"no stage of {name} has saved a checkpoint yet")
    return started[-1], None


def _print(found: list[RunUse], tags: dict[str, int]) -> None:
    console = stdout()
    for use in found:
        of = "" if use.total_steps is None else f" of {use.total_steps:,}"
        attempts = "1 attempt" if use.attempts == 1 else f"{use.attempts} attempts"
        say(f"{use.run.root.name}: {use.task}, {use.layout}, {attempts}, step {use.step:,}{of}")
        table = columns(
            [
                (
                    source.path,
                    ", ".join(source.tags),
                    "" if source.planned is None else format_count(source.planned),
                    format_count(source.consumed),
                    "?" if source.epochs is None else f"{source.epochs:.2f}",
                    str((source.corpus or {}).get("licence") or "?"),
                    source.state,
                )
                for source in use.sources
            ],
            ("source", "tags", "planned", "consumed", "epochs", "licence", "files"),
        )
        for column in table.columns[2:5]:
            column.justify, column.no_wrap = "right", True
        console.print(table)
        say("")
    total = sum(use.consumed for use in found)
    shares = ", ".join(f"{tag} {format_count(n)} ({n / max(1, total):.1%})" for tag, n in tags.items())
    say(f"{format_count(total)} tokens consumed in {len(found)} {'run' if len(found) == 1 else 'runs'}: {shares}")
