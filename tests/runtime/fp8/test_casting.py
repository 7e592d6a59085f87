"""Counts of a cast to FP8 against numbers whose fate the formats' definition says (arXiv:2209.05433, table 1)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from colosseum.runtime.fp8.casting import BLOCK, LOWEST, Numbers, merged
from colosseum.runtime.fp8.report import Row, ends, propose, rows_of

SPAN = {"e4m3": 448 / 2**-10, "e5m2": 57344 / 2**-17}
"""Largest number over half of the smallest: what is smaller than amax over this becomes 0 (a tie goes to even, 0)."""


def seen(*batches: list[float]) -> Numbers:
    numbers = Numbers()
    for batch in batches:
        numbers.see(torch.tensor([batch]))
    return numbers


@pytest.mark.parametrize("name", SPAN)
@pytest.mark.parametrize("amax", [1.0, 3e-5, 700.0])
def test_what_is_below_half_of_the_smallest_number_becomes_0(name: str, amax: float) -> None:
    edge = amax / SPAN[name]
    numbers = seen([amax, 1.01 * edge, -1.01 * edge, 0.99 * edge, -0.5 * edge, 0.0])
    assert numbers.casts[name].underflow["tensorwise"] == 2
    assert (numbers.count, numbers.zeros, numbers.amax) == (5, 1, pytest.approx(amax))


def test_each_block_has_a_scale_of_its_own() -> None:
    large, small = [1.0] * BLOCK, [2.0**-25] * BLOCK
    underflow = seen([*large, *small]).casts["e4m3"].underflow
    assert underflow == {"tensorwise": BLOCK, "blockwise": 0}
    assert seen([*([1.0] + [2.0**-25] * (BLOCK - 1)), *small]).casts["e4m3"].underflow["blockwise"] == BLOCK - 1


def test_delayed_scaling_overflows_where_a_batch_is_larger_than_those_before() -> None:
    numbers = seen([1.0, 0.5], [4.0, 0.9], [3.9, 1.0])
    assert numbers.casts["e4m3"].overflow == numbers.casts["e5m2"].overflow == 1
    assert numbers.judged == 4
    assert rows_of({"1.linear_qkv.input": numbers})[0].overflow["e4m3"] == 0.25
    assert rows_of({"1.linear_qkv.input": seen([1.0])})[0].overflow["e4m3"] is None


def test_the_error_of_e4m3_is_that_of_three_bits() -> None:
    """Uniform in [1, 2), scaled onto [224, 448): a seventh has a spacing of 16, the rest of 32; e5m2 twice that.

    A rounding error has the mean square spacing^2 / 12, the numbers 224^2 * 7 / 3.
    """
    torch.manual_seed(1)
    numbers = Numbers()
    numbers.see(torch.rand(1, 100_000) + 1.0)
    row = rows_of({"1.linear_fc1.input": numbers})[0]
    expected = 10 * math.log10(224**2 * 7 / 3 / ((16**2 / 7 + 32**2 * 6 / 7) / 12))
    assert row.error_db["e4m3"] == pytest.approx(expected, abs=0.1)
    assert row.error_db["e5m2"] == pytest.approx(expected - 20 * math.log10(2), abs=0.2)


@settings(deadline=None)
@given(st.lists(st.floats(-1e4, 1e4, width=32, allow_subnormal=False), min_size=1, max_size=40))
def test_every_number_is_in_one_bin(values: list[float]) -> None:
    numbers = seen(values)
    assert sum(numbers.exponents) == numbers.count
    assert seen([1.0, 1.99, 0.5]).exponents[-LOWEST - 1 : -LOWEST + 1] == [1, 2]


def test_ranks_that_saw_parts_saw_the_whole() -> None:
    parts = [{"1.linear_qkv.input": seen([1.0, 0.25])}, {"1.linear_qkv.input": seen([3.0]), "2.x.weight": seen([2.0])}]
    whole = merged(parts)
    assert (whole["1.linear_qkv.input"].count, whole["1.linear_qkv.input"].amax, len(whole)) == (3, 3.0, 2)


@settings(deadline=None)
@given(st.integers(1, 24), st.data())
def test_the_ends_hold_every_bad_layer_with_the_fewest_layers(layers: int, data: st.DataObject) -> None:
    bad = tuple(sorted(data.draw(st.sets(st.integers(1, layers), min_size=1))))
    first, last = ends(bad, layers)
    assert all(layer <= first or layer > layers - last for layer in bad)
    fewest = min(
        a + b
        for a in range(layers + 1)
        for b in range(layers + 1 - a)
        if all(layer <= a or layer > layers - b for layer in bad)
    )
    assert first + last == fewest


def row(layer: int, tensorwise: float, blockwise: float = 0.0) -> Row:
    lost = {"tensorwise": tensorwise, "blockwise": blockwise}
    return Row(
        layer=layer,
        module="linear_qkv",
        kind="input",
        format="e4m3",
        zeros=0.0,
        amax=1.0,
        underflow={"e4m3": lost, "e5m2": lost},
        overflow={"e4m3": 0.0, "e5m2": 0.0},
        error_db={"e4m3": 30.0, "e5m2": 24.0},
        exponents=(),
    )


@pytest.mark.parametrize(
    "lost, scaling, words",
    [
        ({}, "delayed", ()),
        ({1: 0.02}, "tensorwise", ("precision.bf16_layers.first=1",)),
        ({2: 0.02, 12: 0.3}, "delayed", ("precision.bf16_layers.first=2", "precision.bf16_layers.last=1")),
        ({6: 0.02}, "tensorwise", ("precision.bf16_layers.first=6",)),
        ({1: 0.02, 4: 0.02, 8: 0.02, 12: 0.02}, "tensorwise", ("precision.fp8=blockwise",)),
    ],
)
def test_proposals(lost: dict[int, float], scaling: str, words: tuple[str, ...]) -> None:
    rows = [row(layer, lost.get(layer, 0.001)) for layer in range(1, 13)]
    assert propose(rows, scaling, 12).overrides == words  # type: ignore[arg-type]


def test_where_no_scaling_helps_bf16_is_proposed() -> None:
    rows = [row(layer, 0.5, 0.5) for layer in range(1, 13)]
    assert propose(rows, "delayed", 12).overrides == ("precision.fp8=none",)
