"""The Engine protocol: everything that the rest of the package knows about a training stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from colosseum.errors import Fault
from colosseum.planning.plan import Plan
from colosseum.recipe.base import AUTO
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import FromRun, Source
from colosseum.rundir import RunDir

NEMO_IMAGE = "nvcr.io#nvidia/nemo"
"""NVIDIA's image of NeMo and what comes with it, without its release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaunch:
    """What every rank runs, from inside the run folder."""

    files: Mapping[str, bytes]
    """Files under ``engine/`` of the bundle, by name."""
    argv: Sequence[str]
    """The program and arguments of one rank; no value ever reaches a shell unquoted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One environment variable of the ranks and why it is set."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """The releases of a public image whose engine has the names and options that a renderer was checked against."""

    image: str
    """Without its release, as pyxis takes it."""
    first: str
    last: str
    """Year and month, ``25.04``."""

    def __str__(self) -> str:
        return f"{self.image}:{self.first} to {self.last}"

    def __contains__(self, release: str) -> bool:
        return self.first <= release <= self.last


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """An engine in words, for ``colosseum engines`` and the docs."""

    title: str
    tasks: tuple[str, ...]
    """Kinds of task that it trains."""
    fp8: tuple[str, ...]
    """Scaling recipes."""
    cp: str
    """Which tasks may use context parallelism."""
    releases: Releases | None
    """Public images that it was verified with; None = any image with this package (docker/Dockerfile.mcore)."""
    image: str
    """One image that holds it, as enroot imports it."""
    reads: str
    """Formats of checkpoints that it can start from."""


def reference_pinned(recipe: Recipe, where: Literal["precomputed", "host"]) -> Recipe:
    """The recipe with ``task.reference: auto`` set to ``where``."""
    task = recipe.preference
    if task is None or task.reference != AUTO:
        return recipe
    return recipe.model_copy(update={"task": task.model_copy(update={"reference": where})})


class Engine(Protocol):
    """One training stack. Pure: no file is written, no process started.

    An engine inherits from it what it does as most do.
    """

    name: str
    about: About
    settings: tuple[Setting, ...] = ()
    """Environment variables that only this engine needs."""
    has_metadata: bool = False
    """Whether its checkpoints carry our colosseum.json (docs/contracts.md)."""
    imported_as: str | None = None
    """What ``colosseum checkpoint import`` calls its checkpoints; None = they cannot be imported."""

    def pinned(self, recipe: Recipe) -> Recipe:
        """The recipe with each ``auto`` set that this engine can have in one way only; the planner gets this one."""
        return recipe

    def faults(self, recipe: Recipe) -> list[Fault]:
        """What this engine cannot do of a recipe, with the engine that can."""
        ...

    def notes(self, recipe: Recipe) -> list[str]:
        """What it does otherwise than the recipe says, where that changes no number: one sentence each."""
        return []

    def drops(self, recipe: Recipe) -> list[Fault]:
        """What it leaves out of the recipe that changes the training, with the consequence: a warning, or a refusal
        with ``--strict``."""
        return []

    def render(self, recipe: Recipe, plan: Plan) -> EngineLaunch:
        """Files and command of a resolved recipe."""
        ...

    def checkpoints(self, run: RunDir, gbs: int) -> dict[int, Path]:
        """Checkpoints of a run that another run can start from, by step, ascending.

        Args:
            gbs: sequences (or pairs) of one step of that run.
        """
        ...

    def no_checkpoint(self, run: RunDir) -> str:
        """Why ``checkpoints`` of a run is empty."""
        return f"run {run.root.name} has saved no checkpoint"

    def reference(self, run: RunDir, step: int, path: Path) -> Source:
        """``checkpoint.from`` of a checkpoint of a run that lies beside the new one."""
        return FromRun(run.root.resolve().name, step)

    def source_faults(self, recipe: Recipe, runs: Path) -> list[Fault]:
        """Why a run could not start from what ``checkpoint.from`` names, as far as the login node can see.

        Args:
            runs: where ``run:`` names are looked up; that run has left the checkpoint that is named.
        """
        ...

    def model_of(self, checkpoint: Path) -> Mapping[str, Any] | None:
        """What a checkpoint says of its model, by the names of ``ModelShape``; None = nothing that can be read."""
        return None
