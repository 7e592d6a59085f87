"""Intervals: Wilson's against scipy's, the bootstrap's against what theory says of large samples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from colosseum.evaluation.intervals import bootstrap, difference, interval, wilson


@pytest.mark.parametrize(("right", "count"), [(0, 10), (10, 10), (8, 10), (1, 1), (137, 1000)])
def test_wilson_is_scipys(right: int, count: int) -> None:
    found, theirs = wilson(right, count), binomtest(right, count).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert (found.mean, found.count) == (right / count, count)
    assert found.low <= found.mean <= found.high, "whatever the rounding"


def test_the_bootstrap_of_many_is_the_normal_one() -> None:
    values = np.random.default_rng(5).normal(0.3, 2.0, 4000).tolist()
    found = bootstrap(values, [1.0] * 4000)
    half = 1.96 * np.std(values) / np.sqrt(4000)
    assert found.mean == pytest.approx(np.mean(values))
    assert (found.mean - found.low, found.high - found.mean) == pytest.approx((half, half), rel=0.1)


def test_weights_are_how_often_an_item_counts() -> None:
    """IFEval's instruction-level accuracy: two of three and none of one are two of four."""
    assert bootstrap([2 / 3, 0.0], [3.0, 1.0]).mean == pytest.approx(0.5)


def test_right_or_wrong_is_wilsons_and_the_rest_the_bootstraps() -> None:
    assert interval([1.0, 0.0], [1.0, 1.0]) == wilson(1, 2)
    assert interval([0.5, 0.0], [1.0, 1.0]) == bootstrap([0.5, 0.0], [1.0, 1.0])


def test_paired_items_make_a_small_difference_certain() -> None:
    """Two models that agree on all but 20 of 1,000 items, of which one has all right."""
    theirs = [1.0] * 500 + [0.0] * 500
    ours = [1.0] * 520 + [0.0] * 480
    found = difference(ours, theirs, [1.0] * 1000)
    assert found.low > 0
    assert wilson(520, 1000).low < wilson(500, 1000).high, "the two intervals overlap"
    assert difference(ours, ours, [1.0] * 1000).high == 0.0
