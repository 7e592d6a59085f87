"""Parts of a dataset: cut as megatron-core cuts them, and what is too small is said with the way out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.datasets.blended_megatron_dataset_config import (
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)

from colosseum.data import parts

SHARE = st.integers(0, 1000) | st.decimals(0, 1000, places=3).map(lambda d: f"{d:f}")


@given(shares=st.tuples(SHARE.filter(lambda s: float(s) > 0), SHARE, SHARE), count=st.integers(0, 10**9))
def test_documents_are_cut_as_megatron_core_does(shares: tuple[object, ...], count: int) -> None:
    split = ",".join(map(str, shares))
    matrix = convert_split_vector_to_split_matrix(parse_and_normalize_split(split))
    for part, book_ends in zip(("train", "valid"), matrix, strict=False):
        first, last = parts.documents(split, part, count)  # type: ignore[arg-type]
        if book_ends is None:
            assert first == last
        else:  # as BlendedMegatronDatasetBuilder does
            assert (first, last) == tuple(round(end * count) for end in book_ends)


@pytest.mark.parametrize(
    ("lengths", "split", "part", "sentence"),
    [
        ([32, 33], "1,1,0", "train", "training part (1 documents, data.split 1,1,0) has 32 tokens, fewer than one"),
        ([33, 1], "1,1,0", "train", None),
        ([33, 1], "1,1,0", "valid", None),  # repeated until it fills a sequence
        ([33, 0], "1,1,0", "valid", "has 0 tokens, too few for validation; set train.val_steps=0"),
        ([33] * 10, "99,1,0", "valid", "(0 documents, data.split 99,1,0) has 0 tokens"),
        ([], "99,1,0", "train", "(0 documents"),
    ],
)
def test_parts_that_are_too_small(lengths: list[int], split: str, part: parts.Part, sentence: str | None) -> None:
    found = parts.shortage("x", np.array(lengths, np.int32), split, part, 32)
    assert found is None if sentence is None else found is not None and sentence in found


def test_lengths_are_summed_beyond_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "BLOCK", 3)
    lengths = np.array([1] * 8, np.int32)
    assert parts.shortage("x", lengths, "1,0,0", "train", 7) is None
    assert "has 8 tokens" in (parts.shortage("x", lengths, "1,0,0", "train", 8) or "")
