"""``colosseum engines``: the training engines, and which of them can run a recipe."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from colosseum.cli.arguments import recipe_and_overrides, words_argument
from colosseum.cli.output import Cluster, Json, emit, warn
from colosseum.engines.planned import faults_by_engine
from colosseum.engines.registry import ENGINES
from colosseum.engines.report import engines_text, faults_text
from colosseum.recipe.load import load

Words = Annotated[
    list[str] | None,
    words_argument("[RECIPE] [KEY=VALUE]...", "A recipe: shows which engines can run it and why the others cannot."),
]


def engines(words: Words = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """List the engines and their tasks; with a recipe, which of them can run it."""
    if words:
        _for_recipe(words, cluster, as_json)
        return
    rows = [{"name": name, **asdict(engine.about)} for name, engine in ENGINES.items()]
    emit(as_json, {"schema": "colosseum.engines/1", "engines": rows}, engines_text)


def _for_recipe(words: list[str], cluster: str | None, as_json: bool) -> None:
    name, overrides = recipe_and_overrides(words)
    loaded = load(name, overrides, cluster=cluster)
    warn(loaded.warnings)
    faults = faults_by_engine(loaded.recipe)
    rows = [{"name": e, "can_run": not found, "faults": [f.as_json() for f in found]} for e, found in faults.items()]
    result = {"schema": "colosseum.engines/1", "recipe": name, "engines": rows}
    emit(as_json, result, lambda: faults_text(faults, loaded.recipe.engine))
