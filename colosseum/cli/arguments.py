"""The positional arguments of a command: RECIPE (the first one without ``=``) and overrides, and shell completion."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

import typer

from colosseum.errors import Fault, RefusedInput


def complete(incomplete: str) -> list[str]:
    """Names of recipes and dotted keys that start with what was typed."""
    from colosseum.recipe.describe import catalogue
    from colosseum.recipe.load import shipped_recipes

    return [w for w in (*shipped_recipes(), *(f"{key}=" for key in catalogue())) if w.startswith(incomplete)]


def words_argument(metavar: str, text: str) -> Any:
    """An argument of recipes and keys: what help says of it."""
    return typer.Argument(metavar=metavar, help=text, autocompletion=complete, show_default=False)


RECIPE_HELP = "A shipped recipe or your own .yaml file, then overrides (~KEY resets a key to its default)."
RecipeWords = Annotated[list[str], words_argument("RECIPE [KEY=VALUE]...", RECIPE_HELP)]
OptionalRecipeWords = Annotated[list[str] | None, words_argument("[RECIPE] [KEY=VALUE]...", RECIPE_HELP)]
CheckpointWord = Annotated[
    str, typer.Argument(metavar="RUN[@STEP]|CHECKPOINT", help="A run (its newest checkpoint) or a folder.")
]


def plain_and_overrides(words: list[str]) -> tuple[list[str], list[str]]:
    """Words that name something, and overrides."""
    plain = [word for word in words if "=" not in word and not word.startswith("~")]
    return plain, [word for word in words if word not in plain]


def split_words(words: list[str] | None) -> tuple[str | None, list[str]]:
    """RECIPE and the overrides.

    Raises:
        RefusedInput: a second argument that is not an override.
    """
    recipe, overrides, faults = None, [], []
    for word in words or ():
        if "=" in word or word.startswith("~"):
            overrides.append(word)
        elif recipe is None:
            recipe = word
        else:
            rule = f"{word!r} is not an override (KEY=VALUE or ~KEY), and {recipe!r} is already the recipe"
            faults.append(
                Fault(path="", value=word, rule=rule, nearest=_joined(list(words or ())), where="command line")
            )
            break
    if faults:
        raise RefusedInput(faults)
    return recipe, overrides


def _joined(words: list[str]) -> tuple[str, ...]:
    """``optimizer.lr=1e-4`` for a field that was typed with a blank before its value."""
    from colosseum.recipe.describe import catalogue

    known = catalogue()
    return tuple(f"{key}={value}" for key, value in pairwise(words) if key in known and "=" not in value)


def recipe_and_overrides(words: list[str]) -> tuple[str, list[str]]:
    """As ``split_words``, for a command that needs a recipe.

    Raises:
        RefusedInput: no recipe was given.
    """
    recipe, overrides = split_words(words)
    if recipe is None:
        raise RefusedInput("give a RECIPE: a shipped one (`colosseum recipes` lists them) or a file ending in .yaml")
    return recipe, overrides
