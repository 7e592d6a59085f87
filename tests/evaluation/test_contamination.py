"""Questions in the training data, against a search with Python's own sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from colosseum.data.indexed import write_dataset
from colosseum.evaluation import contamination
from colosseum.evaluation.contamination import LENGTH, overlap


def by_sets(texts: list[list[int]], training: list[int]) -> float:
    """The share of tokens that lie in a shared n-gram."""
    known = {tuple(training[i : i + LENGTH]) for i in range(len(training) - LENGTH + 1)}
    tokens = covered = 0
    for ids in texts:
        marks = [False] * len(ids)
        for at in range(len(ids) - LENGTH + 1):
            if tuple(ids[at : at + LENGTH]) in known:
                marks[at : at + LENGTH] = [True] * LENGTH
        covered, tokens = covered + sum(marks), tokens + len(ids)
    return covered / tokens


@pytest.mark.parametrize("block", [1 << 22, 64])
def test_the_share_is_that_of_a_plain_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Also where an n-gram lies across two blocks."""
    monkeypatch.setattr(contamination, "_BLOCK", block)
    rng = np.random.default_rng(2)
    training = rng.integers(0, 3, 3000).tolist()  # few ids: n-grams that are equal by chance
    with write_dataset(tmp_path / "shard", 512) as writer:
        for at in range(0, 3000, 250):
            writer.add_document(training[at : at + 250])
    questions = {f"chance-{n}": [rng.integers(0, 3, 40).tolist(), rng.integers(0, 3, 15).tolist()] for n in range(20)}
    questions |= {"whole": [training[700:760]], "half": [training[100:130] + [9] * 30], "none": [[9] * 50]}
    found = overlap({**questions, "short": [[1, 2, 3]]}, [tmp_path / "shard"], lambda _: None)
    assert found.seen == pytest.approx({key: by_sets(texts, training) for key, texts in questions.items()})
    assert (found.seen["whole"], found.seen["half"], found.seen["none"]) == (1.0, 0.5, 0.0)
    assert "whole" in found.dirty and "none" in found.clean and "half" not in (*found.dirty, *found.clean)
    assert found.short == 1
