"""Reading and training tokenizer.json files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from colosseum.data.tokenizer import load_tokenizer, train_tokenizer
from colosseum.errors import EnvironmentFault, RefusedInput
from tests.data.tokenization.corpora import EOD, TEXTS, tokenizer_json

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_json(tmp_path_factory.mktemp("tokenizer"))


def test_cutting_and_padding_of_the_file_are_ignored(tmp_path: Path, tokenizer: Path) -> None:
    loaded = load_tokenizer(tokenizer, EOD)
    loaded.library.enable_truncation(max_length=4)
    loaded.library.enable_padding(length=64)
    loaded.library.save(str(tmp_path / "cut.json"))
    again = load_tokenizer(tmp_path / "cut.json", EOD)
    short, long = again.library.encode_batch(["a", TEXTS[0]], add_special_tokens=False)
    assert len(short.ids) == 1
    assert again.library.decode(long.ids) == TEXTS[0]


def test_same_text_gives_the_same_tokenizer(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train_tokenizer(TEXTS * 3, tmp_path / name, vocab_size=290, eod=EOD)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_unknown_eod_names_the_nearest(tokenizer: Path) -> None:
    with pytest.raises(RefusedInput, match=r"nearest: <\|endoftext\|>"):
        load_tokenizer(tokenizer, "<endoftext>")


def test_vocabulary_must_hold_all_bytes(tmp_path: Path) -> None:
    with pytest.raises(RefusedInput, match="257"):
        train_tokenizer(TEXTS, tmp_path / "t.json", vocab_size=256, eod=EOD)
    train_tokenizer(TEXTS, tmp_path / "t.json", vocab_size=257, eod=EOD)
    assert load_tokenizer(tmp_path / "t.json", EOD).vocab_size == 257


def test_a_missing_library_is_the_machines_fault(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(EnvironmentFault, match=r"pip install '.\[train\]'"):
        load_tokenizer(tokenizer, EOD)
