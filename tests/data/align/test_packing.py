"""Packing loses no token, mixes no sample, and wastes no more than first-fit decreasing may."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colosseum.data.align.packing import pack, pack_row, padded_sizes
from colosseum.errors import RefusedInput

LENGTHS = st.lists(st.integers(1, 64), max_size=60)


def padded(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


@given(lengths=LENGTHS, multiple=st.sampled_from([1, 2, 8, 16]), seq_length=st.sampled_from([64, 128]))
def test_every_sample_once_and_no_row_too_long(lengths: list[int], multiple: int, seq_length: int) -> None:
    plan = pack(np.array(lengths, np.int64), seq_length, multiple)
    assert sorted(i for row in plan.rows for i in row) == list(range(len(lengths)))
    sizes = [padded(n, multiple) for n in lengths]
    assert all(0 < sum(sizes[i] for i in row) <= seq_length for row in plan.rows)
    used = [sum(sizes[i] for i in row) for row in plan.rows]
    assert sum(u <= seq_length // 2 for u in used) <= 1, "two rows that are half empty would be one"
    if plan.rows:
        assert plan.efficiency == sum(lengths) / (len(plan.rows) * seq_length)


@given(lengths=LENGTHS)
def test_is_first_fit_decreasing(lengths: list[int]) -> None:
    """Against the plain algorithm, row by row."""
    rows: list[list[int]] = []
    for sample in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for row in rows:
            if sum(lengths[i] for i in row) + lengths[sample] <= 64:
                row.append(sample)
                break
        else:
            rows.append([sample])
    assert pack(np.array(lengths, np.int64), 64).rows == tuple(map(tuple, rows))


@given(pairs=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=30))
def test_pairs_stay_together(pairs: list[tuple[int, int]]) -> None:
    plan = pack(np.array(pairs, np.int64), 64, 2)
    assert sorted(i for row in plan.rows for i in row) == list(range(len(pairs)))
    assert all(sum(padded(n, 2) for i in row for n in pairs[i]) <= 64 for row in plan.rows)


def test_refusals() -> None:
    with pytest.raises(RefusedInput, match="multiple of 16"):
        pack(np.array([3]), 100, 16)
    with pytest.raises(RefusedInput, match=r"80 tokens .*nearest: 80"):
        pack(np.array([70]), 64, 16)


@given(
    sequences=st.lists(st.lists(st.integers(3, 99), min_size=2, max_size=9), min_size=0, max_size=4),
    multiple=st.sampled_from([1, 4]),
    data=st.data(),
)
def test_a_row(sequences: list[list[int]], multiple: int, data: st.DataObject) -> None:
    """Cut at its boundaries the row is the samples again: inputs, next tokens, masks, positions from 0."""
    masks = [data.draw(st.lists(st.booleans(), min_size=len(s), max_size=len(s))) for s in sequences]
    row = pack_row([[(s, m)] for s, m in zip(sequences, masks, strict=True)], 64, multiple, longest=16)
    assert row.cu_seqlens[0] == 0
    assert row.cu_seqlens[-1] == 64
    assert (np.diff(row.cu_seqlens) > 0).all()
    assert (np.diff(row.cu_seqlens) <= 16).all(), "what is left over is cut too: learned positions have no more rows"
    for n, (ids, mask) in enumerate(zip(sequences, masks, strict=True)):
        start, end = row.cu_seqlens[n], row.cu_seqlens[n + 1]
        assert (end - start) % multiple == 0
        length = len(ids) - 1
        assert row.inputs[start : start + length].tolist() == ids[:-1]
        assert row.targets[start : start + length].tolist() == ids[1:]
        assert row.loss_mask[start:end].tolist() == [*mask[1:], *[False] * (end - start - length)]
        assert (row.owners[start : start + length] == n).all()
    for start, end in pairwise(row.cu_seqlens):
        assert row.position_ids[start:end].tolist() == list(range(end - start))
    assert (row.owners == len(sequences)).sum() == 64 - sum(len(ids) - 1 for ids in sequences)
    assert row.loss_mask.sum() == sum(sum(m[1:]) for m in masks)


def test_sides_of_pairs_are_numbered_chosen_first() -> None:
    pairs = [[([1, 2, 3], [0, 1, 1]), ([1, 4], [0, 1])], [([5, 6], [0, 1]), ([5, 7, 8], [0, 1, 1])]]
    row = pack_row(pairs, 8, 1, longest=8)
    assert row.owners.tolist() == [0, 0, 2, 1, 3, 3, 4, 4]
    assert padded_sizes(np.array([[2, 1], [1, 2]]), 4).tolist() == [8, 8]
