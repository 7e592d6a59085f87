"""Engine ``mcore``: our own runtime on megatron-core. It reads the bundle's recipe and plan, so it needs no files."""

from __future__ import annotations

from colosseum.engines.base import EngineLaunch
from colosseum.errors import Fault
from colosseum.planning.plan import Plan
from colosseum.recipe.schema import Recipe


class McoreEngine:
    """See ``engines.base.Engine``."""

    name = "mcore"

    def faults(self, recipe: Recipe) -> list[Fault]:
        """Nothing beyond the rules between fields (``recipe/rules.py``), which are megatron-core's."""
        return []

    def render(self, recipe: Recipe, plan: Plan) -> EngineLaunch:
        return EngineLaunch(files={}, argv=("python", "-m", "colosseum.runtime", "bundle"))
