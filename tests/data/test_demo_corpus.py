"""The demo's corpus and the entropy that its loss is held against."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from colosseum.data.demo_corpus import code, english, languages, write_corpus
from colosseum.data.indexed import write_dataset
from colosseum.data.tokenization.rows import texts
from colosseum.data.tokenization.sources import find_sources
from colosseum.data.unigram import blend_entropy, token_frequencies


def test_corpus_is_real_text_of_many_kinds(tmp_path: Path) -> None:
    files = write_corpus(tmp_path)
    assert [f.name for f in files] == ["languages.jsonl", "english.jsonl", "code.jsonl"]
    assert all(f.stat().st_size > 400_000 for f in files)
    assert sum(1 for _ in texts(find_sources([str(f) for f in files]).files, "text")) > 1400
    assert any("Alle Menschen sind frei und gleich an Würde" in t for t in languages())
    assert any('The "assert" statement' in t for t in english())
    assert any("class Future" in t for t in code())


def test_each_article_is_there_in_each_language() -> None:
    path = Path(__file__).parents[2] / "colosseum/data/corpus/udhr.jsonl"
    tongues = [json.loads(line)["lang"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(tongues) == 31 * 41
    assert all(tongues[i : i + 41] == sorted(set(tongues)) for i in range(0, len(tongues), 41))


def _dataset(prefix: Path, ids: list[int]) -> Path:
    with write_dataset(prefix, 300) as writer:
        writer.add_document(ids)
    return prefix


def test_entropy_of_equal_tokens_is_the_logarithm(tmp_path: Path) -> None:
    assert blend_entropy([(_dataset(tmp_path / "a", list(range(8))), 3.0)]) == pytest.approx(math.log(8))
    assert blend_entropy([(_dataset(tmp_path / "b", [7] * 5), 1.0)]) == 0


def test_entropy_follows_the_weights(tmp_path: Path) -> None:
    """Two sources of one token each, 3 : 1, whatever their sizes: H(0.75) = 0.5623 nats."""
    sources = [(_dataset(tmp_path / "a", [1] * 9), 3.0), (_dataset(tmp_path / "b", [200]), 1.0)]
    assert blend_entropy(sources) == pytest.approx(0.562335, abs=1e-6)


def test_frequencies_over_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colosseum.data.unigram.CHUNK_TOKENS", 3)
    ids = np.array([0, 1, 1, 5, 5, 5, 2, 0], np.uint16)
    assert token_frequencies(ids).tolist() == [0.25, 0.25, 0.125, 0, 0, 0.375]
