"""Which engine a recipe's ``engine`` names."""

from __future__ import annotations

from collections.abc import Mapping

from colosseum.engines.base import Engine
from colosseum.engines.mcore import McoreEngine
from colosseum.engines.megatron_lm import MegatronLmEngine
from colosseum.engines.nemo1 import Nemo1Engine
from colosseum.errors import Fault, RefusedInput

ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (McoreEngine(), MegatronLmEngine(), Nemo1Engine())}


def engine_of(name: str) -> Engine:
    """The engine that renders launches.

    Raises:
        RefusedInput: recipes may name it, but no launch can be written for it in this version.
    """
    if name in ENGINES:
        return ENGINES[name]
    rule = (
        f"this version writes launches for {', '.join(ENGINES)} only; "
        f"a recipe of {name} can be validated, explained and planned"
    )
    raise RefusedInput([Fault(path="engine", value=name, rule=rule, nearest=tuple(ENGINES))])
