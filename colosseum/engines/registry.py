"""Which engine a recipe's ``engine`` names."""

from __future__ import annotations

from collections.abc import Mapping

from colosseum.engines.base import Engine
from colosseum.engines.bridge.engine import BridgeEngine
from colosseum.engines.mcore.engine import McoreEngine
from colosseum.engines.megatron_lm.engine import MegatronLmEngine
from colosseum.engines.nemo1.engine import Nemo1Engine
from colosseum.engines.nemo2.engine import Nemo2Engine
from colosseum.recipe.schema import Recipe

ENGINES: Mapping[str, Engine] = {
    engine.name: engine for engine in (McoreEngine(), MegatronLmEngine(), Nemo1Engine(), Nemo2Engine(), BridgeEngine())
}


def engine_of(name: str) -> Engine:
    """The engine that renders launches; the schema knows no other names."""
    return ENGINES[name]


def cannot_train(recipe: Recipe) -> str | None:
    """Why a recipe can be planned and written as a bundle but not started with its engine; None = it can."""
    tasks = engine_of(recipe.engine).about.tasks
    if recipe.task.kind in tasks:
        return None
    return f"engine {recipe.engine} trains {', '.join(tasks)}; {recipe.name} is {recipe.task.kind}"
