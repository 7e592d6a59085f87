"""Plans within the limits of a recipe's engine."""

from __future__ import annotations

from colosseum.engines.registry import ENGINES, engine_of
from colosseum.errors import Fault, RefusedInput
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


def faults_by_engine(recipe: Recipe) -> dict[str, list[Fault]]:
    """Faults of a recipe by engine, its ``auto`` settled as that engine needs it; empty = the engine can run it."""
    found, task = {}, recipe.task.kind
    for name, engine in ENGINES.items():
        try:
            its = resolved(recipe.model_copy(update={"engine": name}))
        except RefusedInput as refused:  # no layout fits within the engine's limits
            found[name] = list(refused.faults)
            continue
        # What `task.reference: auto` means differs by engine.
        found[name] = engine.faults(its.model_copy(update={"task": recipe.task}))
        if task not in engine.about.tasks and not found[name]:
            found[name] = [Fault(path="task.kind", value=task, rule=f"engine {name} does not train it yet")]
    return found
