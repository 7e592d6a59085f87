"""``colosseum rehearse RECIPE``: a scaled-down recipe on a few processes of this machine, and the results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colosseum.cli.arguments import RecipeWords, recipe_and_overrides
from colosseum.cli.output import Cluster, Json, Runs, emit, note, warn
from colosseum.errors import RunFailed
from colosseum.launch.runs.submit import runs_root
from colosseum.launch.trials.rehearsal import rehearse as rehearsed
from colosseum.launch.trials.report import rehearsal_text
from colosseum.recipe.load import load

Ranks = Annotated[int, typer.Option("--ranks", metavar="N", help="Number of processes, 2 to 8.")]


def rehearse(
    words: RecipeWords, ranks: Ranks = 4, cluster: Cluster = None, runs: Runs = None, as_json: Json = False
) -> None:
    """Scale a recipe down to this machine, train it, resume it twice and compare."""
    name, overrides = recipe_and_overrides(words)
    loaded = load(name, overrides, cluster=cluster)
    warn(loaded.warnings)
    result = rehearsed(
        loaded.recipe,
        runs_root(runs, loaded.recipe.cluster).resolve(),
        shown=name,
        ranks=ranks,
        base=Path.cwd(),
        say=note,
    )
    failed = [check.name for check in result.checks if not check.passed]
    failure = None if result.passed else RunFailed(f"the rehearsal of {name} failed: {'; '.join(failed)}")
    emit(as_json, result.as_json(), lambda: rehearsal_text(result), failure)
