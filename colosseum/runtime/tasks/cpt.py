"""Continued pretraining: every token that the data do not mask is trained."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from colosseum.recipe.schema import Recipe
from colosseum.runtime import data
from colosseum.runtime.stability.ladder import Event
from colosseum.runtime.tasks.base import Batch, Part, Samples, Setup, Sums, token_sums


class Cpt:
    """The loss is the mean cross-entropy of the unmasked tokens."""

    names: tuple[str, ...] = ()

    def __init__(self, recipe: Recipe, cache: Path) -> None:
        self._recipe, self._cache = recipe, cache

    @cached_property
    def _identities(self) -> tuple[str, ...]:
        return data.identities(self._recipe)

    def prepare(self, setup: Setup) -> None: ...

    def samples(self, part: Part, size: int) -> data.BlendSamples:
        return data.build(self._recipe, part, size, self._cache, self._identities)

    def sample_order(self) -> str:
        return data.sample_order(self._recipe, self._identities)

    def before_batches(self, model: list[Any], samples: Samples, first: int) -> None: ...

    def sums(self, losses_BS: torch.Tensor, batch: Batch) -> Sums:
        return token_sums(losses_BS, batch)

    def metrics(self, totals: dict[str, float]) -> dict[str, float]:
        return {}

    def notice(self, metrics: dict[str, float]) -> Event | None:
        return None
