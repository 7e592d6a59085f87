"""Training, validation and test parts of a dataset, as megatron-core splits it by ``data.split``. Needs numpy only."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

Part = Literal["train", "valid"]
BLOCK = 1 << 20
"""Number of lengths read at once: an index of a terabyte of tokens has hundreds of millions."""
_ORDER: tuple[Part, ...] = ("train", "valid")


def documents(split: str, part: Part, count: int) -> tuple[int, int]:
    """First document of a part and the one after its last, out of ``count``.

    megatron-core: shares are normalised, summed up, multiplied by the number of documents and rounded
    (``parse_and_normalize_split``, ``_build_megatron_dataset_splits``).
    """
    shares = np.array([float(share) for share in split.split(",")])
    bounds = (0.0, *accumulate((shares / shares.sum()).tolist()))
    first, last = list(pairwise(bounds))[_ORDER.index(part)]
    return round(first * count), round(last * count)


def shortage(prefix: str, lengths: npt.NDArray[np.int32], split: str, part: Part, seq_length: int) -> str | None:
    """Why a part of a dataset cannot be trained or validated on; None = it can. A short validation part is repeated.

    Args:
        lengths: tokens of each document.
    """
    first, last = documents(split, part, len(lengths))
    needed = seq_length + 1 if part == "train" else 1
    tokens = 0
    for start in range(first, last, BLOCK):
        tokens += int(lengths[start : min(start + BLOCK, last)].sum(dtype=np.int64))
        if tokens >= needed:
            return None
    name = "training" if part == "train" else "validation"
    wants = f"fewer than one sequence of {seq_length} + 1" if part == "train" else "too few for validation"
    text = f"{prefix}: its {name} part ({last - first} documents, data.split {split}) has {tokens} tokens, {wants}"
    return text if part == "train" else f"{text}; set train.val_steps=0 to train without validation"
