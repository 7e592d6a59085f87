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


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """An engine in words, for ``colosseum engines`` and the docs."""

    title: str
    tasks: tuple[str, ...]
    fp8: tuple[str, ...]
    """Scaling recipes."""
    cp: str
    """Which tasks may use context parallelism."""
    container: str
    """A public image that holds it."""
    image: str
    """One such image as enroot imports it."""
    reads: str
    """Checkpoints it begins from."""


class Engine(Protocol):
    """One training stack. Pure: no file is written, no process started."""

    name: str
    about: About

    def faults(self, recipe: Recipe) -> list[Fault]:
        """What this engine cannot do of a recipe, with the engine that can."""
        ...

    def notes(self, recipe: Recipe) -> list[str]:
        """What it does otherwise than the recipe says, where that changes no number: one sentence each."""
        ...

    def render(self, recipe: Recipe, plan: Plan) -> EngineLaunch:
        """Files and command of a resolved recipe."""
        ...
