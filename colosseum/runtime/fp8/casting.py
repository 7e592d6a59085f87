"""What a cast to FP8 does to the numbers of a tensor, by casting them: how many become 0, how many exceed the format.

Formats: "FP8 Formats for Deep Learning", arXiv:2209.05433. Scaling as Transformer Engine does it: before the cast a
tensor is multiplied by ``largest number of the format / amax``, amax being the tensor's own (tensorwise), the largest
of the batches before (delayed), or that of each 128 numbers, the scale rounded down to a power of 2 (blockwise).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
LARGEST = {name: torch.finfo(dtype).max for name, dtype in FORMATS.items()}
LOWEST, HIGHEST = -48, 15
"""Exponents of the first and the last bin of a histogram; smaller and larger ones are counted there."""
BINS = HIGHEST - LOWEST + 1
BLOCK = 128


@dataclass(slots=True)
class Cast:
    """Counts over all numbers of a tensor that are not 0, for one format."""

    underflow: dict[str, int] = field(default_factory=lambda: {"tensorwise": 0, "blockwise": 0})
    """Numbers that become 0, by scaling."""
    overflow: int = 0
    """Numbers beyond the format's largest under delayed scaling, of batches that have one before them."""
    error: float = 0.0
    """Sum of squared errors under tensorwise scaling."""


@dataclass(slots=True)
class Numbers:
    """What was seen of one tensor over several batches."""

    count: int = 0
    """Numbers that are not 0."""
    zeros: int = 0
    judged: int = 0
    """Of ``count``, those that delayed scaling had an amax for."""
    power: float = 0.0
    """Sum of squares."""
    amax: float = 0.0
    exponents: list[int] = field(default_factory=lambda: [0] * BINS)
    casts: dict[str, Cast] = field(default_factory=lambda: {name: Cast() for name in FORMATS})

    def see(self, tensor: torch.Tensor) -> None:
        """Adds a batch's tensor; its last dimension is the one that is multiplied and summed."""
        numbers = tensor.detach().float()
        amax = float(numbers.abs().max()) if numbers.numel() else 0.0
        filled = int(torch.count_nonzero(numbers))
        self.count += filled
        self.zeros += numbers.numel() - filled
        self.power += float(numbers.square().sum(dtype=torch.float64))
        self._see_exponents(numbers)
        if amax > 0:
            for name, cast in self.casts.items():
                self._see_cast(cast, name, numbers, amax)
        self.judged += filled if self.amax > 0 else 0
        self.amax = max(self.amax, amax)

    def add(self, other: Numbers) -> None:
        """Adds what another rank saw of its part."""
        self.count += other.count
        self.zeros += other.zeros
        self.judged += other.judged
        self.power += other.power
        self.amax = max(self.amax, other.amax)
        self.exponents = [a + b for a, b in zip(self.exponents, other.exponents, strict=True)]
        for name, cast in self.casts.items():
            more = other.casts[name]
            cast.underflow = {how: n + more.underflow[how] for how, n in cast.underflow.items()}
            cast.overflow += more.overflow
            cast.error += more.error

    def _see_exponents(self, numbers: torch.Tensor) -> None:
        bins = torch.frexp(numbers[numbers != 0]).exponent.long() - 1
        counts = torch.bincount(bins.clamp(LOWEST, HIGHEST) - LOWEST, minlength=BINS)
        self.exponents = [a + b for a, b in zip(self.exponents, counts.tolist(), strict=True)]

    def _see_cast(self, cast: Cast, name: str, numbers: torch.Tensor, amax: float) -> None:
        scale = LARGEST[name] / amax
        rounded = rounded_to(numbers * scale, name)
        cast.underflow["tensorwise"] += lost(numbers, rounded)
        cast.error += float((rounded / scale - numbers).square().sum(dtype=torch.float64))
        blocks = blocks_of(numbers)
        cast.underflow["blockwise"] += lost(blocks, rounded_to(blocks * block_scales(blocks, name), name))
        if self.amax > 0:
            cast.overflow += int((numbers.abs() * (LARGEST[name] / self.amax) > LARGEST[name]).sum())


def rounded_to(scaled: torch.Tensor, name: str) -> torch.Tensor:
    """FP32 numbers rounded to a format; what exceeds it becomes its largest number."""
    return scaled.clamp(-LARGEST[name], LARGEST[name]).to(FORMATS[name]).float()


def lost(before: torch.Tensor, after: torch.Tensor) -> int:
    """Numbers that were not 0 and are now."""
    return int(((after == 0) & (before != 0)).sum())


def blocks_of(numbers: torch.Tensor) -> torch.Tensor:
    """``[…, K]`` → ``[blocks, BLOCK]``; the last block of a row is filled with 0."""
    rows = numbers.reshape(-1, numbers.shape[-1])
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK)).reshape(-1, BLOCK)


def block_scales(blocks: torch.Tensor, name: str) -> torch.Tensor:
    """Powers of 2, ``[blocks, 1]``; 1 for a block of 0."""
    amax = blocks.abs().amax(1, keepdim=True)
    scale = torch.exp2(torch.floor(torch.log2(LARGEST[name] / amax)))
    return torch.where(amax > 0, scale, torch.ones_like(scale))


def merged(parts: Sequence[dict[str, Numbers]]) -> dict[str, Numbers]:
    """What several ranks saw, by tensor."""
    whole: dict[str, Numbers] = {}
    for part in parts:
        for name, numbers in part.items():
            whole.setdefault(name, Numbers()).add(numbers)
    return whole
