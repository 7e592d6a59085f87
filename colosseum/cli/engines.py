"""``colosseum engines``: the training engines, and which of them can run a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

from rich.text import Text

from colosseum.cli.arguments import recipe_and_overrides, words_argument
from colosseum.cli.output import Cluster, Json, columns, emit, stdout, warn
from colosseum.engines.planned import faults_by_engine
from colosseum.engines.registry import ENGINES
from colosseum.errors import Fault
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
    emit(as_json, {"schema": "colosseum.engines/1", "engines": rows}, _show)


def _show() -> None:
    out = stdout()
    for name, engine in ENGINES.items():
        about = engine.about
        rows = [
            ("tasks", ", ".join(about.tasks)),
            ("FP8", ", ".join(about.fp8)),
            ("context parallel", about.cp),
            ("container", str(about.releases or "any with this package, such as docker/Dockerfile.mcore")),
            ("starts from", about.reads),
        ]
        table = columns(rows, padding=(0, 2, 0, 2))
        table.columns[0].no_wrap = True
        out.print(Text(name, style="bold").append(f"  {about.title}", style="not bold"))
        out.print(table)


def _for_recipe(words: list[str], cluster: str | None, as_json: bool) -> None:
    name, overrides = recipe_and_overrides(words)
    loaded = load(name, overrides, cluster=cluster)
    warn(loaded.warnings)
    faults = faults_by_engine(loaded.recipe)
    rows = [{"name": e, "can_run": not found, "faults": [f.as_json() for f in found]} for e, found in faults.items()]
    result = {"schema": "colosseum.engines/1", "recipe": name, "engines": rows}
    emit(as_json, result, lambda: _show_faults(faults, loaded.recipe.engine))


def _show_faults(faults: Mapping[str, Sequence[Fault]], chosen: str) -> None:
    out = stdout()
    for engine, found in faults.items():
        mark = "can run it" if not found else "cannot:"
        its = " (the recipe's)" if engine == chosen else ""
        out.print(Text(engine, style="bold").append(f"{its}  {mark}", style="not bold"))
        for fault in found:
            out.print(Text(f"  {fault.sentence()}"))
