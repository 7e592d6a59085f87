"""The end-of-document token: a special one of the tokenizer's file, or refused, wherever the file can be seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colosseum.data.eod import eod_id, read_sentencepiece
from colosseum.data.tokenizer import load_tokenizer, train_tokenizer
from colosseum.errors import RefusedInput
from tests.cli import conftest
from tests.cli.conftest import Cli

MODEL = Path(__file__).with_name("small.model")
"""80 pieces made by SentencePiece 0.2.3: <unk> 0, <s> 1, </s> 2, the user-defined <|endoftext|> 3, then a text's."""
cli = conftest.cli
JSON = {
    "version": "1.0",
    "model": {"type": "WordLevel", "vocab": {"a": 0, "the": 1, "<end>": 2, "<tool>": 3}, "unk_token": "a"},
    "added_tokens": [
        {"id": 2, "content": "<end>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False},
        {"id": 3, "content": "<tool>", "special": False, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False},
    ],
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(JSON))
    return path


def test_special_tokens_end_documents(file: Path) -> None:
    assert eod_id("tokenizer_json", file, "<end>") == (4, 2)
    assert load_tokenizer(file, "<end>").eod_id == 2
    assert eod_id("sentencepiece", MODEL, "</s>") == (80, 2)
    assert eod_id("sentencepiece", MODEL, "<|endoftext|>") == (80, 3)


WRONG = [("nothing", "has no such token"), ("the", "is an ordinary token"), ("<tool>", "is an ordinary token")]


@pytest.mark.parametrize(("word", "rule"), WRONG)
def test_other_words_are_refused_everywhere(file: Path, word: str, rule: str, cli: Cli, tmp_path: Path) -> None:
    for read in (lambda: eod_id("tokenizer_json", file, word), lambda: load_tokenizer(file, word)):
        with pytest.raises(RefusedInput, match=rule) as refused:
            read()
        (fault,) = refused.value.faults
        assert (fault.path, fault.value, fault.nearest) == ("tokenizer.eod", word, ("<end>",))
    done = cli(
        "validate",
        "generic",
        "tokenizer.kind=tokenizer_json",
        f"tokenizer.path={file}",
        f"tokenizer.eod={word}",
        "--json",
    )
    assert done.code == 2
    (shown,) = json.loads(done.out)["faults"]
    assert (shown["path"], shown["where"]) == ("tokenizer.eod", "command line")
    (tmp_path / "text.jsonl").write_text('{"text": "the a"}\n')
    done = cli("data", "tokenize", "text.jsonl", "--tokenizer", str(file), "--eod", word, "-o", "out")
    assert (done.code, rule in done.said) == (2, True)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("word", ["nothing", "<unk>", "▁t", "th"])
def test_sentencepiece_answers_unk_for_a_word_it_does_not_know(word: str) -> None:
    """`piece_to_id` of the library gives 0, the id of <unk>, for "nothing", and ordinary ids for the last two."""
    with pytest.raises(RefusedInput) as refused:
        eod_id("sentencepiece", MODEL, word)
    assert refused.value.faults[0].path == "tokenizer.eod"


@pytest.mark.parametrize("cut", [0, 1, 5, 300, 800])
def test_a_damaged_model_is_refused(cut: int, tmp_path: Path) -> None:
    data = MODEL.read_bytes()
    (tmp_path / "cut.model").write_bytes(data[:cut] + b"\xff" * (len(data) - cut))
    with pytest.raises(RefusedInput, match="not a SentencePiece model"):
        read_sentencepiece(tmp_path / "cut.model")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", "{}", '{"model": 3}', '{"model": {"vocab": {"a": "b"}}}', "[" * 10**5, '{"model": {}}',
     '{"model": {"vocab": {"a": 1e999}}}', '{"model": {"vocab": [[]]}}', '{"model": {}, "added_tokens": [{"id": 1}]}'],
)  # fmt: skip
def test_a_file_that_is_no_tokenizer_is_one_sentence(text: str, file: Path, cli: Cli) -> None:
    file.write_text(text)
    (file.parent / "text.jsonl").write_text('{"text": "the a"}\n')
    done = cli("data", "tokenize", "text.jsonl", "--tokenizer", str(file), "-o", "out")
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert done.err.count("\n") <= 4


def test_a_panic_of_the_library_is_a_refusal(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A Rust panic is a BaseException and prints a trace of its own: 2^62 table rows are too many for it."""
    tokenizers = pytest.importorskip("tokenizers")
    from colosseum.data.tokenizer import refusing

    trainer = tokenizers.trainers.BpeTrainer(vocab_size=2**62, show_progress=False)
    with pytest.raises(RefusedInput, match=r"cannot train: .*overflow"), refusing("cannot train"):
        tokenizers.Tokenizer(tokenizers.models.BPE()).train_from_iterator(["a b"], trainer)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("vocab", [-1, 0, 256, 1_000_001, 2**62, 2**64])
def test_a_vocabulary_of_no_sense_is_refused(vocab: int, tmp_path: Path) -> None:
    with pytest.raises(RefusedInput, match="vocabulary"):
        train_tokenizer(["a"], tmp_path / "t.json", vocab_size=vocab, eod="<end>")
    assert list(tmp_path.iterdir()) == []
