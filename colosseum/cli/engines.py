"""``colosseum engines``: the training stacks that a recipe can name, and which of them can run one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from colosseum.cli.output import Cluster, Json, document, stdout, warn
from colosseum.cli.words import complete

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY=VALUE]...",
        help="A recipe: shows which engines can run it and why the others cannot.",
        autocompletion=complete,
        show_default=False,
    ),
]


def engines(words: Words = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """List the engines with what each can run; with a recipe, which of them can run it."""
    if words:
        _for_recipe(words, cluster, as_json)
        return
    from colosseum.engines.registry import ENGINES

    if as_json:
        rows = [{"name": name, **asdict(engine.about)} for name, engine in ENGINES.items()]
        document({"schema": "colosseum.engines/1", "engines": rows})
        return
    from rich.table import Table
    from rich.text import Text

    out = stdout()
    for name, engine in ENGINES.items():
        about = engine.about
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for label, text in (
            ("tasks", ", ".join(about.tasks)),
            ("FP8", ", ".join(about.fp8)),
            ("context parallel", about.cp),
            ("container", about.container),
            ("begins from", about.reads),
        ):
            table.add_row(label, Text(text))
        out.print(Text(name, style="bold").append(f"  {about.title}", style="not bold"))
        out.print(table)


def _for_recipe(words: list[str], cluster: str | None, as_json: bool) -> None:
    from rich.text import Text

    from colosseum.cli.words import recipe_and_overrides
    from colosseum.engines.planned import resolved
    from colosseum.engines.registry import ENGINES
    from colosseum.errors import Fault
    from colosseum.recipe.load import load

    name, overrides = recipe_and_overrides(words)
    loaded = load(name, overrides, cluster=cluster)
    warn(loaded.warnings)
    recipe = resolved(loaded.recipe)
    task = recipe.task.kind
    faults = {engine: ENGINES[engine].faults(recipe) for engine in ENGINES}
    for engine in (e for e in ENGINES if task not in ENGINES[e].about.tasks and not faults[e]):
        faults[engine].append(Fault(path="task.kind", value=task, rule=f"engine {engine} does not train it yet"))
    if as_json:
        rows = [
            {"name": e, "can_run": not found, "faults": [f.as_json() for f in found]} for e, found in faults.items()
        ]
        document({"schema": "colosseum.engines/1", "recipe": name, "engines": rows})
        return
    out = stdout()
    for engine, found in faults.items():
        mark = "can run it" if not found else "cannot:"
        chosen = " (the recipe's)" if engine == recipe.engine else ""
        out.print(Text(engine, style="bold").append(f"{chosen}  {mark}", style="not bold"))
        for fault in found:
            out.print(Text(f"  {fault.sentence()}"))
