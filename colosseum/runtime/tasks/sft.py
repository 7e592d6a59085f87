"""Supervised fine-tuning: the mean cross-entropy of the trained tokens of a step's rows."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from colosseum.data.align.cache import AlignedData
from colosseum.recipe.schema import Recipe
from colosseum.runtime.stability.ladder import Event
from colosseum.runtime.tasks.aligned import AlignedSamples, open_data, order_identity, samples_of
from colosseum.runtime.tasks.base import Batch, Part, Samples, Setup, Sums, token_sums


class Sft:
    """See ``tasks.base.Task``."""

    names: tuple[str, ...] = ()

    def __init__(self, recipe: Recipe, cache: Path) -> None:
        self._recipe, self._cache = recipe, cache

    @cached_property
    def _train(self) -> AlignedData:
        return open_data(self._recipe, "train", self._cache)

    def prepare(self, setup: Setup) -> None: ...

    def samples(self, part: Part, size: int) -> AlignedSamples:
        data = self._train if part == "train" else open_data(self._recipe, "valid", self._cache)
        return samples_of(self._recipe, data, part, size, {})

    def sample_order(self) -> str:
        return order_identity(self._recipe, self._train)

    def before_batches(self, model: list[Any], samples: Samples, first: int) -> None: ...

    def sums(self, losses_BS: torch.Tensor, batch: Batch) -> Sums:
        return token_sums(losses_BS, batch)

    def metrics(self, totals: dict[str, float]) -> dict[str, float]:
        return {"trained_tokens": totals["count"]}

    def notice(self, metrics: dict[str, float]) -> Event | None:
        return None
