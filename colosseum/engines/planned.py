"""Plans within the limits of a recipe's engine."""

from __future__ import annotations

from colosseum.engines.registry import engine_of
from colosseum.planning.constants import Calibration
from colosseum.planning.plan import Plan
from colosseum.planning.resolve import apply_layout, resolve
from colosseum.recipe.schema import Recipe


def plan(recipe: Recipe, calibration: Calibration | None = None, *, top: int = 5) -> Plan:
    """The plan of a recipe; see ``planning.resolve.resolve``."""
    return resolve(engine_of(recipe.engine).pinned(recipe), calibration, top=top)


def resolved(recipe: Recipe) -> Recipe:
    """The recipe with every ``auto`` of its layout settled by its plan."""
    return apply_layout(engine_of(recipe.engine).pinned(recipe), plan(recipe).layout)
