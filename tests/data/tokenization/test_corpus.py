"""Corpora to .bin/.idx: against the tokenizer's library and megatron-core's builder, killed, and with bad rows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from colosseum.cli.data import app
from colosseum.cli.data_tokenize import bar
from colosseum.data.indexed import bin_path, read_dataset
from colosseum.data.tokenization import corpus as corpus_module
from colosseum.data.tokenization import engine
from colosseum.data.tokenization.corpus import Progress, tokenize_corpus
from colosseum.data.tokenizer import load_tokenizer
from colosseum.errors import EnvironmentFault, RefusedInput
from tests.data.tokenization.corpora import (
    EOD,
    MANY,
    TEXTS,
    all_files,
    both,
    by_megatron,
    corpus,
    jsonl,
    tokenized,
    tokenizer_json,
)

pytest.importorskip("tokenizers")
pytest.importorskip("gigatoken")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_json(tmp_path_factory.mktemp("tokenizer"))


def _ids(texts: list[str], tokenizer: Path) -> list[list[int]]:
    """By the library, one text at a time, with the end-of-document id."""
    loaded = load_tokenizer(tokenizer, EOD)
    return [[*loaded.library.encode(t, add_special_tokens=False).ids, loaded.eod_id] for t in texts]


@pytest.mark.parametrize("shard_bytes", [None, 300])
@pytest.mark.parametrize("processes", [1, 2])
def test_same_bytes_as_the_library_and_megatrons_builder(
    tmp_path: Path, tokenizer: Path, shard_bytes: int | None, processes: int
) -> None:
    pytest.importorskip("torch")
    source = jsonl(tmp_path / "a.jsonl", [*MANY, ""])
    done = tokenize_corpus(corpus([source], tmp_path / "out", tokenizer, shard_bytes=shard_bytes), processes=processes)
    assert both(tmp_path / "out") == by_megatron(tmp_path / "theirs", _ids(MANY, tokenizer), 300)
    manifest = done.manifest
    assert (manifest["documents"], manifest["empty"]) == (len(MANY), 1)
    assert manifest["text_bytes"] == sum(len(t.encode()) for t in MANY)
    assert manifest["engine"].startswith("gigatoken ")
    assert not (tmp_path / "out.parts").exists()


def test_manifest_has_hashes_that_sha256sum_confirms(tmp_path: Path, tokenizer: Path) -> None:
    files = [jsonl(tmp_path / f"{n}.jsonl", MANY[n::3]) for n in range(3)]
    tags = corpus_module.Tags(name="mixed", licence="CC0-1.0", language="de", domain="law")
    manifest = tokenized(files, tmp_path / "out", tokenizer, tags=tags, shard_bytes=300).manifest
    named = {source["path"]: source["sha256"] for source in manifest["sources"]}
    named |= {f"{tmp_path}/out.{kind}": file["sha256"] for kind, file in manifest["files"].items()}
    named |= {manifest["tokenizer"]["path"]: manifest["tokenizer"]["sha256"]}
    sums = "".join(f"{digest}  {path}\n" for path, digest in named.items())
    assert len(named) == 6
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet"], input=sums.encode(), check=True)
    assert [source["documents"] for source in manifest["sources"]] == [80, 80, 80]
    assert sum(source["tokens"] for source in manifest["sources"]) == read_dataset(tmp_path / "out").tokens
    assert (manifest["licence"], manifest["language"], manifest["domain"]) == ("CC0-1.0", "de", "law")


# --- killed ------------------------------------------------------------------------------------------------------

KILLED = """
import gigatoken, os, signal, shutil, sys, tokenizers
from pathlib import Path
from tests.data.tokenization.corpora import all_files, tokenized
source, tokenizer, folder, step = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}

def run(kill_at):
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    seen = 0
    def watch(event, arguments):
        nonlocal seen
        if event in EVENTS and str(folder) in str(arguments[0]):
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(watch)
    tokenized([source], folder / "out", tokenizer, shard_bytes=3000, max_rejected=0.5)
    os._exit(0)

folder.mkdir()
assert run(0) == 0
right = all_files(folder)
kills = 0
for kill_at in range(1, 10_000, step):
    shutil.rmtree(folder)
    folder.mkdir()
    status = run(kill_at)
    kills += os.WIFSIGNALED(status)
    if kill_at % 2 and os.WIFSIGNALED(status):
        run(kill_at // 2)
    assert run(0) == 0
    assert all_files(folder) == right, (kill_at, all_files(folder).keys())
    if status == 0:
        break
print(kills, *right)
"""


def test_killed_before_any_change_of_a_file_and_started_again(tmp_path: Path, tokenizer: Path) -> None:
    """The identical bytes, whichever system call the process was killed before; some are killed twice."""
    source = jsonl(tmp_path / "a.jsonl", MANY)
    source.write_text(source.read_text() + "not JSON\n")
    words = [sys.executable, "-c", KILLED, str(source), str(tokenizer), str(tmp_path / "folder"), "9"]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    kills, *names = done.stdout.split()
    assert int(kills) >= 8
    assert names == ["out.bin", "out.idx", "out.manifest.json", "out.rejected.jsonl"]


def test_workers_end_with_the_killed_process(tmp_path: Path, tokenizer: Path) -> None:
    """The command is killed as soon as the first shard is there; the parts it left are used, and nobody adds any."""
    source = jsonl(tmp_path / "a.jsonl", MANY * 200)
    program = (
        "import os, signal, sys\nfrom tests.data.tokenization.corpora import *\n"
        "def kill(progress):\n    if progress.documents: os.kill(os.getpid(), signal.SIGKILL)\n"
        "if __name__ == '__main__':\n"
        "    made = corpus(sys.argv[1:2], Path(sys.argv[2]), Path(sys.argv[3]), shard_bytes=200_000)\n"
        "    tokenize_corpus(made, processes=2, on_progress=kill)\n"
    )
    script = tmp_path / "killed.py"
    script.write_text(program)
    words = [sys.executable, str(script), str(source), str(tmp_path / "out"), str(tokenizer)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    # Its output ends when the last process that has it open has ended.
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    kept = {p.name for p in (tmp_path / "out.parts").glob("*.json")}
    assert kept
    tokenized([source], tmp_path / "out", tokenizer, shard_bytes=200_000)
    tokenized([source], tmp_path / "whole", tokenizer)
    assert both(tmp_path / "out") == both(tmp_path / "whole")


def test_the_same_command_again_writes_nothing(tmp_path: Path, tokenizer: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", TEXTS)
    tokenized([source], tmp_path / "out", tokenizer)
    before = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in tmp_path.iterdir()}
    assert tokenized([source], tmp_path / "out", tokenizer).already
    assert {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in tmp_path.iterdir()} == before
    jsonl(source, MANY)
    with pytest.raises(RefusedInput, match="--force"):
        tokenized([source], tmp_path / "out", tokenizer)
    done = tokenize_corpus(corpus([source], tmp_path / "out", tokenizer), force=True, processes=1)
    assert done.manifest["documents"] == len(MANY)


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = jsonl(tmp_path / "a.jsonl", TEXTS)
    encode = engine.Fast.encode

    def change(fast: engine.Fast, texts: Any) -> engine.Tokens:
        source.write_text(source.read_text() + source.read_text())
        return encode(fast, texts)

    monkeypatch.setattr(engine.Fast, "encode", change)
    with pytest.raises(RefusedInput, match="changed while it was read"):
        tokenized([source], tmp_path / "out", tokenizer)
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


def test_one_process_at_a_time(tmp_path: Path, tokenizer: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", TEXTS)
    made = corpus([source], tmp_path / "out", tokenizer)
    with corpus_module._alone(made.parts), pytest.raises(EnvironmentFault, match="another process works in"):
        tokenize_corpus(made)


# --- the fast engine ---------------------------------------------------------------------------------------------


def _wrong_where(condition: Callable[[bytes], bool]) -> Callable[[Any, Any], engine.Tokens]:
    """An engine that gives another first id for some texts."""
    right = engine.Fast._encode

    def encode(fast: engine.Fast, texts: Any) -> engine.Tokens:
        tokens = right(fast, texts)
        ids, starts = np.array(tokens.ids), np.cumsum(tokens.lengths) - tokens.lengths
        for start, text in zip(starts.tolist(), texts, strict=True):
            if condition(text):
                ids[start] += 1
        return engine.Tokens(ids=ids, lengths=tokens.lengths)

    return encode


@pytest.mark.parametrize(
    ("word", "said"),
    [(b"a<|endoftext|>b", "gigatoken gives other ids"), (b"frei und gleich", "all is encoded by the tokenizer's own")],
)
def test_an_engine_that_differs_encodes_nothing(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, word: bytes, said: str
) -> None:
    """For a special token, and for a text of the third shard: the parts of the first two are made again."""
    source = jsonl(tmp_path / "a.jsonl", ["nothing here " * 30] * 2 + MANY)
    tokenized([source], tmp_path / "right", tokenizer)
    monkeypatch.setattr(engine.Fast, "_encode", _wrong_where(lambda text: word in text))
    sentences: list[str] = []
    made = corpus([source], tmp_path / "out", tokenizer, shard_bytes=400)
    done = tokenize_corpus(made, processes=1, say=sentences.append)
    assert both(tmp_path / "out") == both(tmp_path / "right")
    assert done.manifest["engine"].startswith("tokenizers ")
    assert len(sentences) == 1
    assert said in sentences[0]


def test_without_the_fast_engine_the_library_encodes(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = jsonl(tmp_path / "a.jsonl", TEXTS)
    tokenized([source], tmp_path / "right", tokenizer)
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    sentences: list[str] = []
    tokenize_corpus(corpus([source], tmp_path / "out", tokenizer), processes=1, say=sentences.append)
    assert both(tmp_path / "out") == both(tmp_path / "right")
    assert "pip install '.[data]'" in sentences[0]


# --- rows that cannot be used ------------------------------------------------------------------------------------

BAD = [
    (b'{"text": "a"', "not JSON"),
    (b"[1, 2]", "must be a JSON object"),
    (b'{"body": "a"}', "no key 'text'.*body"),
    (b'{"text": 5}', "must be a string, not int"),
    (b'{"text": null}', "must be a string, not NoneType"),
    (b'{"text": "\xff"}', "not UTF-8 at byte 11"),
    (b'{"text": "\\ud800"}', "surrogate"),
    (b"[" * 100000, "not JSON"),
]


@pytest.mark.parametrize(("line", "rule"), BAD)
def test_a_bad_line_is_named_and_nothing_written(tmp_path: Path, tokenizer: Path, line: bytes, rule: str) -> None:
    source = tmp_path / "bad.jsonl"
    source.write_bytes(b'{"text": "good"}\n\n' + line + b"\n")
    with pytest.raises(RefusedInput, match=f"{rule}.*bad.jsonl:3") as caught:
        tokenized([source], tmp_path / "out", tokenizer)
    assert caught.value.faults[0].where == f"{source}:3"
    assert "1 of 2 rows cannot be used (50.00%)" in caught.value.faults[-1].rule
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.jsonl", "out.parts"]


@pytest.mark.parametrize("shard_bytes", [None, 40])
def test_bad_lines_below_the_limit_are_set_aside(tmp_path: Path, tokenizer: Path, shard_bytes: int | None) -> None:
    """Their lines are those of the file, blank ones counted, however it is divided."""
    source, other = tmp_path / "bad.jsonl", jsonl(tmp_path / "good.jsonl", MANY)
    lines = [b'{"text": "good"}', b"", b"  "] * 3 + [line for line, _ in BAD] + [b""]
    source.write_bytes(b"\n".join(lines))
    made = corpus([other, source], tmp_path / "out", tokenizer, shard_bytes=shard_bytes, max_rejected=0.1)
    done = tokenize_corpus(made, processes=1)
    rows = [json.loads(line) for line in (tmp_path / "out.rejected.jsonl").read_text().splitlines()]
    assert [(row["file"], row["line"]) for row in rows] == [(str(source), n) for n in range(10, 18)]
    assert rows[0]["text"] == '{"text": "a"'
    assert (done.manifest["rejected"], done.manifest["documents"]) == (8, len(MANY) + 3)
    assert done.manifest["sources"][1]["rejected"] == 8


def test_a_higher_limit_uses_what_was_made(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = jsonl(tmp_path / "a.jsonl", MANY)
    source.write_text(source.read_text() + "5\n")
    with pytest.raises(RefusedInput, match="--max-rejected"):
        tokenized([source], tmp_path / "out", tokenizer)
    monkeypatch.setattr(corpus_module, "tokenize_shard", None)
    assert tokenized([source], tmp_path / "out", tokenizer, max_rejected=0.01).manifest["rejected"] == 1


def test_a_wrong_key_ends_early(tmp_path: Path, tokenizer: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", MANY * 20, key="body")
    with pytest.raises(RefusedInput, match="no key 'text'") as caught:
        tokenized([source], tmp_path / "out", tokenizer, shard_bytes=100_000)
    rows = int(caught.value.faults[-1].rule.split(" of ")[1].split()[0].replace(",", ""))
    assert rows < len(MANY) * 20


def test_no_text_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["", ""])
    with pytest.raises(RefusedInput, match="has no document with text"):
        tokenized([source], tmp_path / "out", tokenizer)


# --- the command -------------------------------------------------------------------------------------------------


def _run(*words: str | Path) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["tokenize", *map(str, words), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_command_trains_then_tokenizes(tmp_path: Path) -> None:
    rows = jsonl(tmp_path / "a.jsonl", TEXTS, key="body")
    plain = tmp_path / "b.txt"
    plain.write_text("one file,\none document\n")
    words = (rows, plain, "--key", "body", "--tokenizer", tmp_path / "t.json")
    assert _run(*words, "--train-tokenizer", "280")["vocab_size"] == 280
    done = _run(*words, "-o", tmp_path / "sub" / "out")
    assert done["documents"] == len(TEXTS) + 1
    ids = [i for row in _ids([*TEXTS, plain.read_text()], tmp_path / "t.json") for i in row]
    assert read_dataset(tmp_path / "sub" / "out").ids.tolist() == ids
    with pytest.raises(RefusedInput, match="--force"):
        _run(*words, "-o", tmp_path / "sub" / "out", "--name", "other")
    _run(*words, "-o", tmp_path / "sub" / "out", "--name", "other", "--force")


def test_command_wants_an_output(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(RefusedInput, match="--output"):
        _run(jsonl(tmp_path / "a.jsonl", TEXTS), "--tokenizer", tokenizer)


def test_a_login_node_needs_no_torch(tmp_path: Path, tokenizer: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", TEXTS)
    words = ["tokenize", str(source), "--tokenizer", str(tokenizer), "-o", str(tmp_path / "out")]
    program = (
        "import sys\nfrom colosseum.cli.data import app\n"
        f"app({words!r}, standalone_mode=False)\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert read_dataset(tmp_path / "out").lengths.size == len(TEXTS)


def test_progress_has_speed_and_time_left() -> None:
    half = Progress(bytes_done=5 * 10**9, bytes_total=10**10, documents=1, tokens=1_500_000_000, rejected=3)
    text = bar(half, since=4 * 10**9, time_s=40.0)
    assert text == "[##########----------]  50%   100.0 MB/s  ETA 0:00:50  1,500.0 M tokens, 3 rejected"
    assert len(bar(half, since=0, time_s=1.0)) < 80


def test_the_bin_is_not_written_when_the_disk_is_full(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = jsonl(tmp_path / "a.jsonl", TEXTS)

    def full(*args: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("colosseum.data.tokenization.merge._concatenate", full)
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        tokenized([source], tmp_path / "out", tokenizer)
    assert not bin_path(tmp_path / "out").exists()
    monkeypatch.undo()
    tokenized([source], tmp_path / "out", tokenizer)
    assert sorted(all_files(tmp_path)) == ["a.jsonl", "out.bin", "out.idx", "out.manifest.json"]
