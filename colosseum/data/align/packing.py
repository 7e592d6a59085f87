"""Packs several samples into one row of seq_length tokens, each attending only to itself: which samples share a row,
and where each starts. Numpy only; the runtime computes the attention.

First-fit decreasing: the longest first, each into the first row with enough space. It needs at most 11/9 of the
minimum number of rows, and 6/9 of a row (Dósa 2007, "The tight bound of first fit decreasing bin-packing algorithm").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from colosseum.errors import Fault, RefusedInput

Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Which samples share a row."""

    rows: tuple[tuple[int, ...], ...]
    """Indices of the samples of each row, the longest first."""
    seq_length: int
    """Tokens per row."""
    multiple: int
    """Every sequence is padded to a multiple of it."""
    tokens: int
    """Tokens of all samples, without padding."""

    @property
    def efficiency(self) -> float:
        """Share of the rows' tokens that are not padding."""
        return self.tokens / (len(self.rows) * self.seq_length) if self.rows else 1.0


def padded_sizes(lengths: Lengths, multiple: int) -> Lengths:
    """Tokens ``[samples]`` that each sample needs in a row: its sequences, each padded to a multiple.

    Args:
        lengths: ``[samples]`` inputs of each sample, or ``[samples, 2]`` for pairs.
    """
    padded = -(-np.asarray(lengths, np.int64) // multiple) * multiple
    return padded.sum(axis=1) if padded.ndim == 2 else padded


def pack(lengths: Lengths, seq_length: int, multiple: int = 1) -> Packing:
    """First-fit decreasing. Equal lengths keep their order, so the same data give the same rows.

    Args:
        lengths: ``[samples]`` inputs of each sample, or ``[samples, 2]`` for pairs, which stay in one row.

    Raises:
        RefusedInput: a padded sample is longer than a row, or the row is not a multiple.
    """
    if seq_length % multiple:
        rule = f"must be a multiple of {multiple} with this layout and precision"
        near = tuple(v for v in (seq_length // multiple * multiple, -(-seq_length // multiple) * multiple) if v)
        raise RefusedInput([Fault(path="batch.seq_length", value=seq_length, rule=rule, nearest=near)])
    sizes = padded_sizes(lengths, multiple)
    if len(sizes) and sizes.max() > seq_length:
        rule = f"a sample has {sizes.max():,} tokens with padding, more than a packed row has"
        near = (int(-(-sizes.max() // multiple) * multiple),)
        raise RefusedInput([Fault(path="batch.seq_length", value=seq_length, rule=rule, nearest=near)])
    rows: list[list[int]] = []
    rooms = _Rooms(len(sizes))
    for sample in np.argsort(-sizes, kind="stable").tolist():
        row = rooms.first_with(int(sizes[sample]), seq_length)
        if row == len(rows):
            rows.append([])
        rows[row].append(sample)
    tokens = int(np.sum(lengths, dtype=np.int64))
    return Packing(rows=tuple(map(tuple, rows)), seq_length=seq_length, multiple=multiple, tokens=tokens)


class _Rooms:
    """A tree of maxima over the rows' free tokens: finds the first row with enough space in log(rows) steps."""

    def __init__(self, rows: int) -> None:
        self._leaves = 1 << max(0, (max(rows, 1) - 1).bit_length())
        self._free: list[int] = []

    def first_with(self, size: int, empty: int) -> int:
        """Reserves ``size`` tokens in the first row with enough space; unused rows have ``empty`` tokens."""
        if not self._free:
            self._free = [empty] * (2 * self._leaves)
        node = 1
        while node < self._leaves:
            node = 2 * node if self._free[2 * node] >= size else 2 * node + 1
        row = node - self._leaves
        self._free[node] -= size
        while node > 1:
            node //= 2
            self._free[node] = max(self._free[2 * node], self._free[2 * node + 1])
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRow:
    """One row in the format of attention kernels for several sequences (THD)."""

    inputs: npt.NDArray[np.int64]
    """``[length]``"""
    targets: npt.NDArray[np.int64]
    """``[length]``: the token after each input, of the same sequence."""
    loss_mask: npt.NDArray[np.bool_]
    """``[length]``: which targets count; padding never does."""
    position_ids: npt.NDArray[np.int64]
    """``[length]``, from 0 in every sequence."""
    cu_seqlens: npt.NDArray[np.int32]
    """``[sequences + 1]`` ends of the sequences with padding; unused space at the end is split into sequences too,
    so that the last entry is the row's length."""
    owners: npt.NDArray[np.int64]
    """``[length]``: which sequence each token belongs to, all first sides before all second ones (chosen, rejected);
    padding has the number after the last."""


def pack_row(
    samples: Sequence[Sequence[tuple[npt.ArrayLike, npt.ArrayLike]]], length: int, multiple: int, longest: int
) -> PackedRow:
    """Lays out the samples of a row.

    Args:
        samples: ids and mask of each sample's sequences, from ``AlignedData.sample``.
        longest: maximum length of a sequence or of a piece of unused space; positions are below it.
    """
    inputs, targets = np.zeros(length, np.int64), np.zeros(length, np.int64)
    loss_mask, position_ids = np.zeros(length, np.bool_), np.zeros(length, np.int64)
    owners = np.full(length, sum(map(len, samples)), np.int64)
    ends, at = [0], 0
    for number, sequences in enumerate(samples):
        for side, (given_ids, given_mask) in enumerate(sequences):
            ids, mask = np.asarray(given_ids), np.asarray(given_mask)
            part = slice(at, at + len(ids) - 1)
            inputs[part], targets[part], loss_mask[part] = ids[:-1], ids[1:], mask[1:]
            owners[part] = side * len(samples) + number
            at += -(-(len(ids) - 1) // multiple) * multiple
            ends.append(at)
    if at > length:
        raise ValueError(f"{at} tokens in a row of {length}")
    ends += [*range(at + longest, length, longest), length] if at < length else []
    for start, end in pairwise(ends):
        position_ids[start:end] = np.arange(end - start)
    return PackedRow(
        inputs=inputs,
        targets=targets,
        loss_mask=loss_mask,
        position_ids=position_ids,
        cu_seqlens=np.array(ends, np.int32),
        owners=owners,
    )
