"""``colosseum rehearse RECIPE``: a scaled-down recipe on a few processes of this machine, and the results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from colosseum.cli.arguments import RecipeWords, recipe_and_overrides
from colosseum.cli.output import Cluster, Json, Runs, columns, emit, note, stdout, warn
from colosseum.errors import RunFailed
from colosseum.launch.runs.submit import runs_root
from colosseum.launch.trials import rehearsal
from colosseum.recipe.load import load

Ranks = Annotated[int, typer.Option("--ranks", metavar="N", help="Number of processes, 2 to 8.")]
_STYLES = {"kept": "green", "scaled": "yellow", "dropped": "red"}


def rehearse(
    words: RecipeWords, ranks: Ranks = 4, cluster: Cluster = None, runs: Runs = None, as_json: Json = False
) -> None:
    """Scale a recipe down to this machine, train it, resume it twice and compare."""
    name, overrides = recipe_and_overrides(words)
    loaded = load(name, overrides, cluster=cluster)
    warn(loaded.warnings)
    result = rehearsal.rehearse(
        loaded.recipe,
        runs_root(runs, loaded.recipe.cluster).resolve(),
        shown=name,
        ranks=ranks,
        base=Path.cwd(),
        say=note,
    )
    failed = [check.name for check in result.checks if not check.passed]
    failure = None if result.passed else RunFailed(f"the rehearsal of {name} failed: {'; '.join(failed)}")
    emit(as_json, result.as_json(), lambda: _show(result), failure)


def _show(result: rehearsal.Rehearsal) -> None:
    out = stdout()
    decided = [(d.what, d.before, d.after, Text(d.verdict, style=_STYLES[d.verdict]), d.why) for d in result.decisions]
    out.print(columns(decided, ("", "recipe", "here", "", "why"), padding=(0, 1), pad_edge=False))
    out.print()
    marks = {True: Text("passed", style="green"), False: Text("FAILED", style="bold red")}
    out.print(columns([(c.name, marks[c.passed], c.detail) for c in result.checks], padding=(0, 1), pad_edge=False))
    out.print()
    word = "passed" if result.passed else "failed"
    out.print(f"rehearsal of {result.recipe} {word} in {result.time_s:.0f} s: {result.runs[0].root}", soft_wrap=True)
