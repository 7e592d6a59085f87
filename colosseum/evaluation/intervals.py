"""95% confidence intervals: Wilson's of a share, the bootstrap's of any mean and of a difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Z = 1.959963984540054
"""The normal distribution's 97.5% quantile."""
RESAMPLES = 2000
SEED = 1234
_BLOCK = 1 << 24
"""Numbers drawn at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its 95% confidence interval."""

    mean: float
    low: float
    high: float
    count: int
    """Items."""


def wilson(successes: float, count: int) -> Interval:
    """Of a share of ``count`` items, each right or wrong (Wilson 1927, doi:10.1080/01621459.1927.10502953)."""
    share, square = successes / count, Z * Z / count
    middle = (share + square / 2) / (1 + square)
    half = Z * math.sqrt(share * (1 - share) / count + square / count / 4) / (1 + square)
    # At 0 and 1 an end of the interval is the share itself, whatever the rounding.
    low, high = max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))
    return Interval(mean=share, low=low, high=high, count=count)


def bootstrap(values: Sequence[float], weights: Sequence[float]) -> Interval:
    """Of the mean of values with weights, over resamples of the items (Efron 1979, doi:10.1214/aos/1176344552)."""
    value, weight = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    low, high = np.quantile(_resampled(value * weight, weight), (0.025, 0.975))
    mean = float((value * weight).sum() / weight.sum())
    return Interval(mean=mean, low=float(low), high=float(high), count=len(value))


def interval(values: Sequence[float], weights: Sequence[float]) -> Interval:
    """Wilson's where every item is right or wrong and counts the same, else the bootstrap's."""
    if set(values) <= {0.0, 1.0} and set(weights) == {1.0}:
        return wilson(sum(values), len(values))
    return bootstrap(values, weights)


def difference(ours: Sequence[float], theirs: Sequence[float], weights: Sequence[float]) -> Interval:
    """Of the mean of ``ours - theirs`` for the same items: what both find hard says nothing of the difference."""
    return bootstrap(np.subtract(ours, theirs).tolist(), weights)


def _resampled(sums: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The mean of each resample."""
    rng = np.random.default_rng(SEED)
    found = np.empty(RESAMPLES)
    rows = max(1, _BLOCK // len(sums))
    for at in range(0, RESAMPLES, rows):
        chosen = rng.integers(0, len(sums), (min(rows, RESAMPLES - at), len(sums)))
        found[at : at + rows] = sums[chosen].sum(1) / weights[chosen].sum(1)
    return found
