"""``colosseum recipes``, ``show``, ``validate``."""

from __future__ import annotations

from typing import Annotated

import typer

from colosseum.cli.output import Cluster, Json, document, stdout, warn
from colosseum.cli.words import RecipeWords, recipe_and_overrides


def recipes(as_json: Json = False) -> None:
    """List the shipped recipes."""
    from colosseum.recipe.load import describe_recipe, shipped_recipes

    rows = [(name, describe_recipe(name)) for name in shipped_recipes()]
    if as_json:
        document({"schema": "colosseum.recipes/1", "recipes": [{"name": n, "summary": s} for n, s in rows]})
        return
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, summary in rows:
        table.add_row(name, summary)
    stdout().print(table)


def show(
    words: RecipeWords,
    cluster: Cluster = None,
    section: Annotated[
        str | None, typer.Option("--section", metavar="NAME", help="Only this section, e.g. parallelism.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a recipe with all values resolved."""
    from colosseum.bundle import to_yaml
    from colosseum.errors import Fault, RefusedInput
    from colosseum.recipe.load import load

    name, overrides = recipe_and_overrides(words)
    loaded = load(name, overrides, cluster=cluster)
    warn(loaded.warnings)
    data = loaded.recipe.as_data()
    if section is not None:
        if section not in data:
            rule = "a recipe has no such section"
            raise RefusedInput([Fault(path="--section", value=section, rule=rule, nearest=tuple(data))])
        data = {section: data[section]}
    if as_json:
        document({"schema": "colosseum.recipe/1", "recipe": data, "warnings": list(loaded.warnings)})
        return
    site = {} if section else {"cluster": data.pop("cluster")}
    text = to_yaml(data).decode().rstrip("\n")
    if site:
        # A recipe may not set them: what is printed must load as a recipe again.
        lines = to_yaml(site).decode().splitlines()
        text += "\n\n# From the cluster file, not part of the recipe:\n" + "\n".join(f"# {line}" for line in lines)
    console = stdout()
    if not console.is_terminal:
        console.out(text)
        return
    from rich.syntax import Syntax

    console.print(Syntax(text, "yaml", theme="ansi_dark", background_color="default", word_wrap=True))


def validate(words: RecipeWords, cluster: Cluster = None, as_json: Json = False) -> None:
    """Check a recipe against its schema, the rules between fields and the arithmetic of its layout.

    All faults come at once, each with its place, its rule and the nearest legal values. Then what the recipe's engine
    cannot do, with the engine that can.
    """
    from colosseum.engines.planned import resolved
    from colosseum.engines.registry import cannot_train, engine_of
    from colosseum.errors import Fault, RefusedInput
    from colosseum.launch.bundles.compile import faults
    from colosseum.launch.bundles.inputs import tokenizer_faults
    from colosseum.launch.runs.request import placing
    from colosseum.recipe.load import load

    name, overrides = recipe_and_overrides(words)
    loaded = load(name, overrides, cluster=cluster)
    recipe = resolved(loaded.recipe)
    engine = engine_of(recipe.engine)
    with placing(loaded.origins):
        found = [*faults(recipe), *tokenizer_faults(recipe)]
        if sentence := cannot_train(recipe):
            found.append(Fault(path="task.kind", value=recipe.task.kind, rule=sentence, nearest=engine.about.tasks))
        if found:
            raise RefusedInput(found)
    warnings = [*loaded.warnings, *engine.notes(recipe)]
    warn(warnings)
    if as_json:
        document({"schema": "colosseum.validation/1", "name": name, "valid": True, "warnings": warnings})
        return
    stdout().print(f"{name} is valid", markup=False)
