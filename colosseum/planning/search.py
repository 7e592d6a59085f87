"""Step time and memory of all layouts, in blocks; and the least recomputation that makes a layout fit."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from colosseum.planning import cost, memory
from colosseum.planning.constants import Constants
from colosseum.planning.flops import Array
from colosseum.planning.hardware import usable_bytes
from colosseum.planning.job import Job, Layouts

TIE = 0.005
"""Share of the step time that does not tell two layouts apart."""
BLOCK = 1 << 14
"""Rows evaluated at once: the temporaries of one block stay in the cache, so memory is bounded and time linear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Layouts with their figures; arrays of one number a layout."""

    layouts: Layouts
    time_s: Array
    allocated: Array
    """Bytes of the fullest rank, as PyTorch counts them."""
    device: Array
    """The same with context, NCCL and fragmentation."""

    def __len__(self) -> int:
        return len(self.time_s)

    def order(self, usable: float) -> npt.NDArray[np.intp]:
        """Row numbers, best first: those that fit by time, then the others by bytes.

        What is within TIE of the fastest is as fast for all that the model can tell: the most head-room comes first.
        """
        fits = self.device <= usable
        tied = fits & (self.time_s <= (1.0 + TIE) * np.min(self.time_s[fits], initial=np.inf))
        return np.lexsort((np.where(fits & ~tied, self.time_s, self.device), ~tied, ~fits))


def evaluate(job: Job, layouts: Layouts, constants: Constants) -> Evaluated:
    """Step time and peak memory of every layout."""
    parts = []
    for start in range(0, len(layouts), BLOCK):
        block = layouts.take(slice(start, start + BLOCK))
        parts.append((cost.step_time(job, block, constants).total_s, *memory.peak(job, block, constants)))
    time_s, allocated, device = (np.concatenate(column) for column in zip(*parts, strict=True)) if parts else _EMPTY
    return Evaluated(layouts=layouts, time_s=time_s, allocated=allocated, device=device)


_EMPTY = (np.empty(0), np.empty(0), np.empty(0))


def search(job: Job, layouts: Layouts, constants: Constants, *, recompute_free: bool) -> Evaluated:
    """Every layout; where recomputation is free, also with all layers recomputed and with as few as fit."""
    plain = evaluate(job, layouts, constants)
    if not recompute_free or not len(plain):
        return plain
    usable = usable_bytes(job.hardware)
    tight = layouts.take(plain.device > usable)
    if not len(tight):
        return plain
    every = with_blocks(tight, np.zeros_like(tight.tp))
    full = evaluate(job, every, constants)
    most = tight.chunk_layers
    some = (full.device <= usable) & (most > 1)
    partly = _least_blocks(job, tight.take(some), constants, usable)
    return _joined(plain, full, *([evaluate(job, partly, constants)] if len(partly) else []))


def with_blocks(layouts: Layouts, blocks: Array) -> Layouts:
    """The layouts with full recomputation: of ``blocks`` layers a chunk (method block), or all where that is 0."""
    share = np.where(blocks > 0, np.minimum(1.0, blocks / layouts.chunk_layers), 1.0)
    return replace(
        layouts,
        recompute=np.full_like(layouts.tp, 2.0),
        recomputed=share,
        recompute_group=np.ones_like(layouts.tp),
        recompute_block=blocks,
    )


def _least_blocks(job: Job, layouts: Layouts, constants: Constants, usable: float) -> Layouts:
    """Bisection on the number of recomputed layers, all layouts at once; rows that need every layer are left out."""
    if not len(layouts):
        return layouts
    most = layouts.chunk_layers
    low, high = np.zeros_like(most), most.copy()
    while np.any(high - low > 1):
        middle = np.where(high - low > 1, np.floor((low + high) / 2), high)
        fits = evaluate(job, with_blocks(layouts, middle), constants).device <= usable
        high, low = np.where(fits, middle, high), np.where(fits, low, middle)
        low = np.minimum(low, high - 1)
    return with_blocks(layouts, high).take(high < most)


def _joined(first: Evaluated, *others: Evaluated) -> Evaluated:
    arrays = {
        f.name: np.concatenate([getattr(part, f.name) for part in (first, *others)])
        for f in fields(Evaluated)
        if f.name != "layouts"
    }
    return Evaluated(layouts=first.layouts.joined(*(o.layouts for o in others)), **arrays)
