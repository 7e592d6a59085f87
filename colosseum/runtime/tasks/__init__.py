"""The tasks that this runtime trains."""

from __future__ import annotations

from colosseum.recipe.schema import Recipe
from colosseum.runtime.failures import ConfigFailure
from colosseum.runtime.tasks.base import Task


def task_of(recipe: Recipe) -> Task:
    """The recipe's task."""
    if recipe.task.kind == "cpt":
        from colosseum.runtime.tasks.cpt import Cpt

        return Cpt(recipe)
    raise ConfigFailure(f"this runtime does not train task {recipe.task.kind}")
