"""The order of samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from colosseum.data.identity import dataset_identity
from colosseum.data.indexed import write_dataset
from colosseum.recipe.schema import Recipe
from colosseum.runtime import data as runtime_data
from colosseum.runtime.data import BlendSamples, vocabulary
from colosseum.runtime.failures import ConfigFailure, DataFailure
from colosseum.runtime.reading import guard
from colosseum.runtime.tasks.base import Part
from tests.cli.conftest import TOKENIZER
from tests.runtime import tiny


def weighted(data: Path, a: float, b: float) -> Recipe:
    full = tiny.recipe(data).as_data()
    for entry, weight in zip(full["data"]["blend"], (a, b), strict=True):
        entry["weight"] = weight
    return Recipe.from_data(full)


def build(recipe: Recipe, size: int, cache: Path, part: Part = "train") -> BlendSamples:
    return runtime_data.build(recipe, part, size, cache, runtime_data.identities(recipe))


def test_blends_that_share_a_cache_keep_their_own_orders(data: Path, tmp_path: Path) -> None:
    build(weighted(data, 0.7, 0.3), 64, tmp_path)
    (order,) = tmp_path.glob("blend-train-*-0.npy")
    mapped = np.load(order, mmap_mode="r")  # as the other ranks of that run hold it
    before = mapped.tolist()
    assert before.count(0) in (44, 45), "64 x 0.7"
    other = build(weighted(data, 0.1, 0.9), 64, tmp_path)
    assert other.source_of.tolist().count(0) in (6, 7), "64 x 0.1"
    assert mapped.tolist() == before
    build(weighted(data, 0.7, 0.3), 64, tmp_path)  # the first run, started again
    assert mapped.tolist() == np.load(order).tolist() == before


def test_a_longer_run_begins_with_the_order_of_a_shorter_one(data: Path, tmp_path: Path) -> None:
    recipe = weighted(data, 0.7, 0.3)
    # Several passes over each source: 64-token samples of 180 documents of about 110 tokens.
    short, long = (build(recipe, size, tmp_path) for size in (100, 1500))
    assert len(long.sources[0]._passes) > len(short.sources[0]._passes)
    for index in range(100):
        a, b = short[index], long[index]
        assert all(a[key].equal(b[key]) for key in a), index


def test_data_made_anew_under_their_name_have_an_order_of_their_own(tmp_path: Path) -> None:
    def written(documents: int) -> tuple[BlendSamples, str]:
        with write_dataset(tmp_path / "a", tiny.VOCAB, force=True) as writer:
            for number in range(documents):
                writer.add_document([(number + i) % 500 for i in range(100)])
        full = tiny.recipe(tmp_path).as_data()
        full["data"]["blend"] = full["data"]["blend"][:1]
        recipe = Recipe.from_data(full)
        which = runtime_data.identities(recipe)
        samples = runtime_data.build(recipe, "train", 64, tmp_path / "cache", which)
        return samples, runtime_data.sample_order(recipe, which)

    small, small_order = written(120)
    assert len(small.sources[0]._passes[0].document_index) == 108, "split 90,10,0"
    grown, grown_order = written(300)
    assert len(grown.sources[0]._passes[0].document_index) == 270
    assert small_order != grown_order
    again, again_order = written(120)
    assert (len(again.sources[0]._passes[0].document_index), again_order) == (108, small_order)


def test_as_many_bytes_of_other_ids_are_other_data(data: Path, tmp_path: Path) -> None:
    tiny.write_data(tmp_path)
    assert dataset_identity(tmp_path / "a") == dataset_identity(data / "a"), "the folder does not matter"
    ids = bytearray((tmp_path / "a.bin").read_bytes())
    ids[-2:] = b"\x01\x00"
    (tmp_path / "a.bin").write_bytes(ids)
    assert dataset_identity(tmp_path / "a") != dataset_identity(data / "a")


def test_a_cut_index_in_the_cache_is_made_anew(data: Path, tmp_path: Path) -> None:
    recipe = tiny.recipe(data)
    guard()
    whole = build(recipe, 64, tmp_path)
    before = [whole[index]["tokens"].tolist() for index in range(64)]
    for path in tmp_path.glob("*_index.npy"):
        path.write_bytes(path.read_bytes()[:-20])
    again = build(recipe, 64, tmp_path)
    assert [again[index]["tokens"].tolist() for index in range(64)] == before


def test_negative_ids_and_offsets_that_are_not_the_lengths_are_data_errors(tmp_path: Path) -> None:
    ids = np.arange(400, dtype="<i4")
    ids[7] = -5
    with write_dataset(tmp_path / "a", 70_000, force=True) as writer:
        writer.add_document(ids)
    with write_dataset(tmp_path / "b", tiny.VOCAB, force=True) as writer:
        for _ in range(9):
            writer.add_document(range(100))
    full = tiny.recipe(tmp_path).as_data()
    full["data"]["split"] = "100,0,0"
    recipe = Recipe.from_data(full)
    samples = build(recipe, 8, tmp_path / "cache")
    with pytest.raises(DataFailure, match="token id -5"):
        for ordinal in range(len(samples.sources[0]._passes[0])):
            samples.sources[0][ordinal]
    index = bytearray((tmp_path / "b.idx").read_bytes())
    offset = 34 + 9 * 4 + 8 * 3  # header, lengths, three offsets
    index[offset : offset + 8] = (2).to_bytes(8, "little")
    (tmp_path / "b.idx").write_bytes(index)
    with pytest.raises(DataFailure, match="offsets do not match its lengths"):
        build(recipe, 8, tmp_path / "other")


def test_data_or_a_tokenizer_changed_after_the_launch_are_still_refused_by_the_ranks(tmp_path: Path) -> None:
    tiny.write_data(tmp_path)
    with pytest.raises(DataFailure, match=r"fewer than one sequence of 65536 \+ 1"):
        build(tiny.recipe(tmp_path, batch={"seq_length": 65536}), 8, tmp_path / "cache", "train")
    (tmp_path / "tokenizer.json").write_text(TOKENIZER.replace('"id": 0', '"id": 9999'))
    sections = {"kind": "tokenizer_json", "path": str(tmp_path / "tokenizer.json"), "eod": "<|endoftext|>"}
    with pytest.raises(ConfigFailure, match=r"has 10000 tokens and model\.vocab_size is 512"):
        vocabulary(tiny.recipe(tmp_path, tokenizer=sections))


def test_a_validation_part_of_less_than_one_sequence_repeats(tmp_path: Path) -> None:
    for name in "ab":
        with write_dataset(tmp_path / name, tiny.VOCAB, force=True) as writer:
            for _ in range(9):
                writer.add_document(range(100))
            writer.add_document(range(300, 330))
    samples = build(tiny.recipe(tmp_path), 8, tmp_path / "cache", "valid")
    for index in range(8):
        tokens = samples[index]["tokens"].tolist()
        assert tokens == [300 + i % 30 for i in range(64)]
