"""The order of samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from colosseum.recipe.schema import Recipe
from colosseum.runtime import data as runtime_data
from tests.runtime import tiny


def weighted(data: Path, a: float, b: float) -> Recipe:
    full = tiny.recipe(data).as_data()
    for entry, weight in zip(full["data"]["blend"], (a, b), strict=True):
        entry["weight"] = weight
    return Recipe.from_data(full)


def test_blends_that_share_a_cache_keep_their_own_orders(data: Path, tmp_path: Path) -> None:
    runtime_data.build(weighted(data, 0.7, 0.3), "train", 64, tmp_path)
    (order,) = tmp_path.glob("blend-train-*-0.npy")
    mapped = np.load(order, mmap_mode="r")  # as the other ranks of that run hold it
    before = mapped.tolist()
    assert before.count(0) in (44, 45), "64 x 0.7"
    other = runtime_data.build(weighted(data, 0.1, 0.9), "train", 64, tmp_path)
    assert other.source_of.tolist().count(0) in (6, 7), "64 x 0.1"
    assert mapped.tolist() == before
    runtime_data.build(weighted(data, 0.7, 0.3), "train", 64, tmp_path)  # the first run, started again
    assert mapped.tolist() == np.load(order).tolist() == before


def test_a_longer_run_begins_with_the_order_of_a_shorter_one(data: Path, tmp_path: Path) -> None:
    recipe = weighted(data, 0.7, 0.3)
    # Several passes over each source: 64-token samples of 180 documents of about 110 tokens.
    short, long = (runtime_data.build(recipe, "train", size, tmp_path) for size in (100, 1500))
    assert len(long.sources[0]._passes) > len(short.sources[0]._passes)
    for index in range(100):
        a, b = short[index], long[index]
        assert all(a[key].equal(b[key]) for key in a), index
