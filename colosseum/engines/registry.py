"""Which engine a recipe's ``engine`` names."""

from __future__ import annotations

from collections.abc import Mapping

from colosseum.engines.base import Engine
from colosseum.engines.mcore import McoreEngine
from colosseum.engines.megatron_lm import MegatronLmEngine
from colosseum.engines.nemo1 import Nemo1Engine
from colosseum.engines.nemo2 import Nemo2Engine

ENGINES: Mapping[str, Engine] = {
    engine.name: engine for engine in (McoreEngine(), MegatronLmEngine(), Nemo1Engine(), Nemo2Engine())
}


def engine_of(name: str) -> Engine:
    """The engine that renders launches; the schema knows no other names."""
    return ENGINES[name]
