"""``colosseum bundle verify|check|run``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from colosseum.bundle import read_bundle
from colosseum.cli.launching import report
from colosseum.cli.output import Json, Runs, emit, say
from colosseum.errors import RefusedInput
from colosseum.launch.bundles.effective import changes
from colosseum.launch.bundles.verify import problems_of
from colosseum.launch.runs.submit import replay, runs_root
from colosseum.launch.schedulers.registry import this_machine

app = typer.Typer(no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A bundle folder: RUN/bundle, or the one kept with --out.")]

Python = Annotated[
    Path | None,
    typer.Option(
        "--python", metavar="PATH", help="Interpreter of an environment that holds the engine. Default: this one."
    ),
]


@app.callback()
def _group() -> None:
    """Verify or replay a launch bundle."""


@app.command()
def verify(folder: Folder, as_json: Json = False) -> None:
    """Check that nothing in a bundle was changed, added or removed, and that its scripts match its recipe."""
    if not folder.is_dir():
        raise RefusedInput(f"{folder}: no such folder")
    problems = problems_of(folder)
    said = "; ".join(problems)
    whole = said.startswith(str(folder))  # what cannot be read, or was written by another release, need not be changed
    failure = RefusedInput(said if whole else f"{folder} was changed: {said}") if problems else None
    result = {"schema": "colosseum.bundle/1", "bundle": str(folder), "sound": not problems, "problems": problems}
    emit(as_json, result, lambda: None if problems else say(f"{folder} is unchanged since it was written"), failure)


@app.command()
def check(folder: Folder, python: Python = None, as_json: Json = False) -> None:
    """Let the engine's own code resolve a bundle's configuration, and list the values that it changes."""
    changed = changes(folder, python or Path(sys.executable))
    shown = "; ".join(f"{one.field} = {one.said} becomes {one.now}" for one in changed)
    failure = RefusedInput(f"{folder}: the engine changes {shown}") if changed else None
    result = {
        "schema": "colosseum.effective/1",
        "bundle": str(folder),
        "changed": [{"field": one.field, "said": one.said, "is": one.now} for one in changed],
    }
    emit(as_json, result, lambda: None if changed else say(f"{folder}: the engine changes no value"), failure)


@app.command()
def run(folder: Folder, runs: Runs = None, as_json: Json = False) -> None:
    """Run a bundle on this machine, in a new run folder."""
    bundle, scheduler = read_bundle(folder), this_machine()
    new, submission = replay(bundle, scheduler, runs_root(runs, bundle.recipe.cluster))
    report(new, submission, scheduler, bundle.recipe, bundle.manifest, as_json)
