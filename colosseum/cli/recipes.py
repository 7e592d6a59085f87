"""``colosseum recipes``, ``show``, ``validate``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from colosseum.bundle import to_yaml
from colosseum.cli.arguments import RecipeWords, recipe_and_overrides
from colosseum.cli.output import Cluster, Json, emit, facts, stdout, warn
from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.load import describe_recipe, load, shipped_recipes


def recipes(as_json: Json = False) -> None:
    """List the shipped recipes."""
    rows = [(name, describe_recipe(name)) for name in shipped_recipes()]
    result = {"schema": "colosseum.recipes/1", "recipes": [{"name": n, "summary": s} for n, s in rows]}
    emit(as_json, result, lambda: facts(rows))


def show(
    words: RecipeWords,
    cluster: Cluster = None,
    section: Annotated[
        str | None, typer.Option("--section", metavar="NAME", help="Only this section, e.g. parallelism.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a recipe with all values resolved."""
    name, overrides = recipe_and_overrides(words)
    loaded = load(name, overrides, cluster=cluster)
    warn(loaded.warnings)
    data = loaded.recipe.as_data()
    if section is not None:
        if section not in data:
            rule = "a recipe has no such section"
            raise RefusedInput([Fault(path="--section", value=section, rule=rule, nearest=tuple(data))])
        data = {section: data[section]}
    result = {"schema": "colosseum.recipe/1", "recipe": data, "warnings": list(loaded.warnings)}
    emit(as_json, result, lambda: _show(data, whole=section is None))


def _show(data: dict[str, Any], *, whole: bool) -> None:
    """YAML that loads as a recipe again."""
    site = {"cluster": data.pop("cluster")} if whole else {}
    text = to_yaml(data).decode().rstrip("\n")
    if site:
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

    All errors are reported at once, each with its location, its rule and the nearest legal values; then what the
    recipe's engine does not support, with an engine that does.
    """
    from colosseum.launch.runs.validate import validated

    name, overrides = recipe_and_overrides(words)
    loaded = load(name, overrides, cluster=cluster)
    warnings = validated(loaded)
    warn(warnings)
    result = {"schema": "colosseum.validation/1", "name": name, "valid": True, "warnings": warnings}
    emit(as_json, result, lambda: f"{name} is valid")
