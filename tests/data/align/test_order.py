"""Every epoch is the same samples in another order, cut to whole batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colosseum.data.align.order import Order
from colosseum.errors import RefusedInput


@given(samples=st.integers(1, 300), gbs=st.integers(1, 40), seed=st.integers(0, 2**31), shuffle=st.booleans())
def test_epochs(samples: int, gbs: int, seed: int, shuffle: bool) -> None:
    if samples < gbs:
        with pytest.raises(RefusedInput, match=rf"batch.gbs = {gbs}: .*nearest: {samples}"):
            Order(samples=samples, gbs=gbs, seed=seed, shuffle=shuffle)
        return
    order = Order(samples=samples, gbs=gbs, seed=seed, shuffle=shuffle)
    assert order.steps_per_epoch * gbs + order.left_over == samples
    for epoch in (0, 1, 5):
        steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
        indices = np.concatenate([order.step(s) for s in steps])
        assert indices.tolist() == order.epoch(epoch).tolist()
        assert len(set(indices.tolist())) == len(indices) == samples - order.left_over
        assert set(indices.tolist()) <= set(range(samples))
        if not shuffle:
            assert indices.tolist() == list(range(len(indices)))


def test_shuffled_by_seed_and_epoch() -> None:
    first, second = (Order(samples=100, gbs=7, seed=s, shuffle=True) for s in (1, 2))
    orders = [first.epoch(0), first.epoch(1), second.epoch(0)]
    assert len({o.tobytes() for o in orders}) == 3
    assert len({frozenset(first.epoch(e).tolist()) for e in range(5)}) > 1, "other samples are left out each time"
    # A figure of its own: another machine or numpy must give the same order, or a resumed run repeats rows.
    assert Order(samples=10, gbs=5, seed=1234, shuffle=True).epoch(0).tolist() == [8, 9, 7, 3, 0, 1, 4, 2, 5, 6]
