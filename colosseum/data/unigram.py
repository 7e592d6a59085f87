"""The loss of a model that knows only token frequencies: the baseline that training must beat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from colosseum.data.indexed import AnyIds, read_dataset

CHUNK_TOKENS = 2**24


def token_frequencies(ids: AnyIds) -> npt.NDArray[np.float64]:
    """Share of each id, ``[largest id + 1]``, adding up to 1."""
    counts = np.zeros(1, np.int64)
    for start in range(0, len(ids), CHUNK_TOKENS):
        part = np.bincount(ids[start : start + CHUNK_TOKENS])
        size = max(len(counts), len(part))
        counts = np.pad(counts, (0, size - len(counts))) + np.pad(part, (0, size - len(part)))
    frequencies: npt.NDArray[np.float64] = counts / max(1, len(ids))
    return frequencies


def blend_entropy(sources: Sequence[tuple[Path, float]]) -> float:
    """Entropy in nats of a token drawn from a blend of datasets (prefix, weight): H = -sum p ln p (Shannon 1948).

    Raises:
        RefusedInput: a dataset is missing or damaged.
    """
    total = sum(weight for _, weight in sources)
    parts = [token_frequencies(read_dataset(prefix).ids) * (weight / total) for prefix, weight in sources]
    size = max(len(p) for p in parts)
    p_V = np.sum([np.pad(p, (0, size - len(p))) for p in parts], axis=0)
    p_V = p_V[p_V > 0]
    return float(-(p_V * np.log(p_V)).sum())
