"""`colosseum data tokenize` from text to token ids."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colosseum.cli.data import app
from colosseum.data.documents import Document, read_documents
from colosseum.data.indexed import read_dataset
from colosseum.data.tokenize import tokenize_documents
from colosseum.data.tokenizer import load_tokenizer, train_tokenizer
from colosseum.errors import EnvironmentFault, RefusedInput

pytest.importorskip("tokenizers")
EOD = "<|endoftext|>"
TEXTS = ["Alle Menschen sind frei und gleich an Würde und Rechten geboren.", "def f(x):\n\treturn x\n", "人人生而自由"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(TEXTS * 3, path, vocab_size=300, eod=EOD)
    return path


def _jsonl(path: Path, texts: list[str], key: str = "text") -> Path:
    path.write_text("".join(json.dumps({key: t}, ensure_ascii=False) + "\n" for t in texts), encoding="utf-8")
    return path


def _decoded(prefix: Path, tokenizer: Path) -> list[str]:
    loaded = load_tokenizer(tokenizer, EOD)
    data, texts, start = read_dataset(prefix), [], 0
    for length in data.lengths:
        *ids, last = data.ids[start : start + length].tolist()
        assert last == loaded.eod_id
        texts.append(loaded.library.decode(ids, skip_special_tokens=False))
        start += length
    return texts


def test_text_survives_the_round_trip(tmp_path: Path, tokenizer: Path) -> None:
    texts = [*TEXTS, "\u2028 line separator, \x00 zero, 🦀", f"{EOD} written in a text ends nothing"]
    source = _jsonl(tmp_path / "a.jsonl", [*texts, ""])
    done = tokenize_documents(read_documents([source], "text"), tmp_path / "out", load_tokenizer(tokenizer, EOD))
    assert _decoded(tmp_path / "out", tokenizer) == texts
    assert (done.documents, done.empty, done.characters) == (5, 1, sum(map(len, texts)))
    assert done.tokens == read_dataset(tmp_path / "out").tokens


def test_many_batches_keep_order(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colosseum.data.tokenize.BATCH_CHARACTERS", 10)
    texts = [f"text {n}" for n in range(50)]
    tokenize_documents((Document(t, "") for t in texts), tmp_path / "out", load_tokenizer(tokenizer, EOD))
    assert _decoded(tmp_path / "out", tokenizer) == texts


def test_cutting_and_padding_of_the_file_are_ignored(tmp_path: Path, tokenizer: Path) -> None:
    loaded = load_tokenizer(tokenizer, EOD)
    loaded.library.enable_truncation(max_length=4)
    loaded.library.enable_padding(length=64)
    loaded.library.save(str(tmp_path / "cut.json"))
    again = load_tokenizer(tmp_path / "cut.json", EOD)
    short, long = again.encode_documents(["a", TEXTS[0]])
    assert len(short) == 2
    assert again.library.decode(long[:-1]) == TEXTS[0]


def test_same_text_gives_the_same_tokenizer(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train_tokenizer(TEXTS * 3, tmp_path / name, vocab_size=290, eod=EOD)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (b'{"text": "a"', "not JSON"),
        (b"[1, 2]", "must be a JSON object"),
        (b'{"body": "a"}', "no key 'text'.*body"),
        (b'{"text": 5}', "must be a string, not int"),
        (b'{"text": "\xff"}', "not UTF-8 at byte 11"),
        (b'{"text": "\\ud800"}', "surrogate"),
        (b"[" * 100000, "not JSON"),
    ],
)
def test_a_bad_line_is_named_and_nothing_written(tmp_path: Path, tokenizer: Path, line: bytes, rule: str) -> None:
    source = tmp_path / "bad.jsonl"
    source.write_bytes(b'{"text": "good"}\n\n' + line + b"\n")
    with pytest.raises(RefusedInput, match=f"{rule}.*bad.jsonl:3") as caught:
        tokenize_documents(read_documents([source], "text"), tmp_path / "out", load_tokenizer(tokenizer, EOD))
    assert caught.value.faults[0].where == f"{source}:3"
    assert [p.name for p in tmp_path.iterdir()] == ["bad.jsonl"]


def test_no_text_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    source = _jsonl(tmp_path / "a.jsonl", ["", ""])
    with pytest.raises(RefusedInput, match="has no document with text"):
        tokenize_documents(read_documents([source], "text"), tmp_path / "out", load_tokenizer(tokenizer, EOD))


def test_unknown_eod_names_the_nearest(tokenizer: Path) -> None:
    with pytest.raises(RefusedInput, match=r"nearest: <\|endoftext\|>"):
        load_tokenizer(tokenizer, "<endoftext>")


def test_vocabulary_must_hold_all_bytes(tmp_path: Path) -> None:
    with pytest.raises(RefusedInput, match="257"):
        train_tokenizer(TEXTS, tmp_path / "t.json", vocab_size=256, eod=EOD)
    train_tokenizer(TEXTS, tmp_path / "t.json", vocab_size=257, eod=EOD)
    assert load_tokenizer(tmp_path / "t.json", EOD).vocab_size == 257


def _run(*words: str | Path) -> dict[str, object]:
    result = CliRunner().invoke(app, ["tokenize", *map(str, words), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    document: dict[str, object] = json.loads(result.stdout)
    return document


def test_command_trains_then_tokenizes(tmp_path: Path) -> None:
    rows = _jsonl(tmp_path / "a.jsonl", TEXTS, key="body")
    plain = tmp_path / "b.txt"
    plain.write_text("one file,\none document\n")
    words = (rows, plain, "--key", "body", "--tokenizer", tmp_path / "t.json")
    assert _run(*words, "--train-tokenizer", "280")["vocab_size"] == 280
    done = _run(*words, "-o", tmp_path / "sub" / "out")
    assert done["documents"] == 4
    assert _decoded(tmp_path / "sub" / "out", tmp_path / "t.json") == [*TEXTS, plain.read_text()]
    with pytest.raises(RefusedInput, match="--force"):
        _run(*words, "-o", tmp_path / "sub" / "out")
    _run(*words, "-o", tmp_path / "sub" / "out", "--force")


def test_command_wants_an_output(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(RefusedInput, match="--output"):
        _run(_jsonl(tmp_path / "a.jsonl", TEXTS), "--tokenizer", tokenizer)


def test_a_login_node_needs_no_torch(tmp_path: Path, tokenizer: Path) -> None:
    source = _jsonl(tmp_path / "a.jsonl", TEXTS)
    words = ["tokenize", str(source), "--tokenizer", str(tokenizer), "-o", str(tmp_path / "out")]
    program = (
        "import sys\nfrom colosseum.cli.data import app\n"
        f"app({words!r}, standalone_mode=False)\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert read_dataset(tmp_path / "out").lengths.size == len(TEXTS)


def test_a_missing_library_is_the_machines_fault(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(EnvironmentFault, match=r"pip install 'colosseum\[train\]'"):
        load_tokenizer(tokenizer, EOD)
