"""The samples of each step: every epoch has its own order and consists of whole global batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from colosseum.errors import Fault, RefusedInput

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order of a file's samples. It depends only on these four numbers, not on the layout or the length of the run.

    Raises:
        RefusedInput: there are fewer samples than in one step.
    """

    samples: int
    gbs: int
    seed: int
    shuffle: bool

    def __post_init__(self) -> None:
        if self.samples < self.gbs:
            rule = f"the file has {self.samples:,} samples to train on, fewer than one step needs"
            raise RefusedInput([Fault(path="batch.gbs", value=self.gbs, rule=rule, nearest=(self.samples,))])

    @property
    def steps_per_epoch(self) -> int:
        return self.samples // self.gbs

    @property
    def left_over(self) -> int:
        """Samples that an epoch drops; with ``shuffle`` different ones in each epoch."""
        return self.samples % self.gbs

    def step(self, number: int) -> Indices:
        """``[gbs]``: samples of step ``number``, counted from 0 over all epochs."""
        epoch, within = divmod(number, self.steps_per_epoch)
        return self.epoch(epoch)[within * self.gbs : (within + 1) * self.gbs]

    def epoch(self, number: int) -> Indices:
        """``[steps_per_epoch * gbs]``: samples of an epoch, counted from 0."""
        return _order(self.samples, self.seed, number, self.shuffle)[: self.steps_per_epoch * self.gbs]


@lru_cache(maxsize=2)
def _order(samples: int, seed: int, epoch: int, shuffle: bool) -> Indices:
    if not shuffle:
        return np.arange(samples)
    # Philox's raw stream is the same in every version of numpy; Generator.permutation may change.
    keys = np.random.Philox(key=[seed, epoch]).random_raw(samples)
    return np.argsort(keys, kind="stable")
