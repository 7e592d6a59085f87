"""Continued pretraining: every token that the data do not mask is trained."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import torch

from colosseum.recipe.schema import Recipe
from colosseum.runtime import data
from colosseum.runtime.tasks.base import Batch, Part, Sums


class Cpt:
    """The loss is the mean cross-entropy of the unmasked tokens."""

    names: tuple[str, ...] = ()
    sequences_per_sample = 1

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    @cached_property
    def _identities(self) -> tuple[str, ...]:
        return data.identities(self._recipe)

    def samples(self, part: Part, size: int, cache: Path) -> data.BlendSamples:
        return data.build(self._recipe, part, size, cache, self._identities)

    def sample_order(self) -> str:
        return data.sample_order(self._recipe, self._identities)

    def sums(self, losses_BS: torch.Tensor, batch: Batch) -> Sums:
        mask_BS = batch["loss_mask"].float()
        return Sums(loss=(losses_BS.float() * mask_BS).sum(), count=mask_BS.sum().int(), more={})

    def metrics(self, totals: dict[str, float]) -> dict[str, float]:
        return {}
