"""The tasks that this runtime trains."""

from __future__ import annotations

from pathlib import Path

from colosseum.recipe.schema import Recipe
from colosseum.runtime.tasks.base import Task


def task_of(recipe: Recipe, cache: Path) -> Task:
    """The recipe's task; ``cache`` is where it keeps what it makes of its data."""
    if recipe.task.kind == "cpt":
        from colosseum.runtime.tasks.cpt import Cpt

        return Cpt(recipe, cache)
    if recipe.task.kind == "sft":
        from colosseum.runtime.tasks.sft import Sft

        return Sft(recipe, cache)
    from colosseum.runtime.tasks.dpo import Dpo

    return Dpo(recipe, cache)
