"""``colosseum rehearse RECIPE``: the recipe on a few processes of this machine, and a verdict in one screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colosseum.cli.output import Cluster, Json, Runs, document, note, stdout, warn
from colosseum.cli.words import RecipeWords, recipe_and_overrides

if TYPE_CHECKING:
    from colosseum.launch.trials.rehearsal import Rehearsal

Ranks = Annotated[int, typer.Option("--ranks", metavar="N", help="Number of processes, 2 to 8.")]
_STYLES = {"kept": "green", "scaled": "yellow", "dropped": "red"}


def rehearse(
    words: RecipeWords, ranks: Ranks = 4, cluster: Cluster = None, runs: Runs = None, as_json: Json = False
) -> None:
    """Shrink a recipe to this machine, train it, resume it twice and compare."""
    from colosseum.errors import RunFailed
    from colosseum.launch.runs.submit import runs_root
    from colosseum.launch.trials.rehearsal import rehearse
    from colosseum.recipe.load import load

    name, overrides = recipe_and_overrides(words)
    loaded = load(name, overrides, cluster=cluster)
    warn(loaded.warnings)
    result = rehearse(
        loaded.recipe,
        runs_root(runs, loaded.recipe.cluster).resolve(),
        shown=name,
        ranks=ranks,
        base=Path.cwd(),
        say=note,
    )
    if as_json:
        document(result.as_json())
    else:
        _show(result)
    if not result.passed:
        if as_json:
            raise typer.Exit(RunFailed.exit_code)
        raise RunFailed(f"the rehearsal of {name} failed: {'; '.join(c.name for c in result.checks if not c.passed)}")


def _show(result: Rehearsal) -> None:
    from rich.table import Table
    from rich.text import Text

    out = stdout()
    table = Table("", "recipe", "here", "", "why", box=None, pad_edge=False)
    for decision in result.decisions:
        verdict = Text(decision.verdict, style=_STYLES[decision.verdict])
        table.add_row(decision.what, decision.before, decision.after, verdict, decision.why)
    out.print(table)
    out.print()
    checks = Table("", "", "", box=None, pad_edge=False, show_header=False)
    for check in result.checks:
        mark = Text("passed", style="green") if check.passed else Text("FAILED", style="bold red")
        checks.add_row(check.name, mark, check.detail)
    out.print(checks)
    out.print()
    word = "passed" if result.passed else "failed"
    out.print(f"rehearsal of {result.recipe} {word} in {result.time_s:.0f} s: {result.runs[0].root}", soft_wrap=True)
