"""What an engine is to the rest of the house: a renderer of files and of a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from colosseum.errors import Fault
from colosseum.planning.plan import Plan
from colosseum.recipe.schema import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaunch:
    """What every rank runs, from inside the run folder."""

    files: Mapping[str, bytes]
    """Files under ``engine/`` of the bundle, by name."""
    argv: Sequence[str]
    """The program and arguments of one rank; no value ever reaches a shell unquoted."""


class Engine(Protocol):
    """One training stack. Pure: no file is written, no process started."""

    name: str

    def faults(self, recipe: Recipe) -> list[Fault]:
        """What this engine cannot do of a recipe, with the engine that can."""
        ...

    def render(self, recipe: Recipe, plan: Plan) -> EngineLaunch:
        """Files and command of a resolved recipe."""
        ...
