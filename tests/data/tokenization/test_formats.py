"""Every format of sources and tokenizers: the same text gives the same bytes, and a damaged file loses nothing."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colosseum.data.indexed import read_dataset
from colosseum.data.tokenization.encoders import find_tokenizer
from colosseum.data.tokenization.sources import find_sources
from colosseum.errors import EnvironmentFault, RefusedInput
from tests.data.tokenization.corpora import EOD, TEXTS, both, jsonl, tokenized, tokenizer_json

pa = pytest.importorskip("pyarrow")
pytest.importorskip("gigatoken")
parquet = pytest.importorskip("pyarrow.parquet")
MANY = [f"{text} {n}" for n in range(20) for text in TEXTS]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_json(tmp_path_factory.mktemp("tokenizer"))


def _lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": t}).encode() + b"\n" for t in texts)


def _zst(path: Path, data: bytes) -> None:
    with pa.output_stream(path, compression="zstd") as file:
        file.write(data)


def _table(texts: list[str | None]) -> Any:
    return pa.table({"id": list(range(len(texts))), "text": texts})


def _arrow(path: Path, texts: list[str]) -> None:
    table = _table(list(texts))
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=17)


def _curator(folder: Path) -> None:
    """One partition a file, with the columns that its readers add."""
    for n in range(3):
        rows = [{"text": t, "id": f"doc-{n}", "file_name": "a"} for t in MANY[n * 40 : n * 40 + 40]]
        (folder / f"part.{n}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "_SUCCESS").write_text("")


def _saved(folder: Path) -> None:
    """As ``datasets`` saves: the order of the files is that of state.json."""
    _arrow(folder / "data-00001-of-00002.arrow", MANY[:50])
    _arrow(folder / "data-00000-of-00002.arrow", MANY[50:])
    names = ["data-00001-of-00002.arrow", "data-00000-of-00002.arrow"]
    state = {"_data_files": [{"filename": name} for name in names], "_indices_files": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def _concatenated(folder: Path) -> None:
    members = gzip.compress(_lines(MANY[:9])), gzip.compress(_lines(MANY[9:]))
    (folder / "two.jsonl.gz").write_bytes(b"".join(members))


def _two_frames(folder: Path) -> None:
    _zst(folder / "first", _lines(MANY[:9]))
    _zst(folder / "second", _lines(MANY[9:]))
    (folder / "two.jsonl.zst").write_bytes((folder / "first").read_bytes() + (folder / "second").read_bytes())
    (folder / "first").unlink()
    (folder / "second").unlink()


def _folders(folder: Path) -> None:
    parquet.write_table(_table(list(MANY[:60])), folder / "a.parquet")
    (folder / "b").mkdir()
    parquet.write_table(_table(list(MANY[60:])), folder / "b" / "a.parquet")


LAYOUTS: dict[str, Callable[[Path], object]] = {
    "jsonl": lambda f: (f / "a.jsonl").write_bytes(_lines(MANY)),
    "byte order mark": lambda f: (f / "a.json").write_bytes(b"\xef\xbb\xbf" + _lines(MANY)),
    "gzip of two members": _concatenated,
    "zst of two frames": _two_frames,
    "parquet": lambda f: parquet.write_table(_table(list(MANY)), f / "a.parquet", row_group_size=13),
    "parquet in folders": _folders,
    "text": lambda f: [(f / f"{n:04}.txt").write_bytes(t.encode()) for n, t in enumerate(MANY)],
    "Hugging Face datasets": _saved,
    "NeMo Curator": _curator,
}


@pytest.mark.parametrize("shard_bytes", [None, 1000])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_format_gives_the_same_bytes(
    tmp_path: Path, tokenizer: Path, layout: str, shard_bytes: int | None
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    LAYOUTS[layout](folder)
    tokenized([jsonl(tmp_path / "plain.jsonl", MANY)], tmp_path / "plain", tokenizer)
    done = tokenized([folder], tmp_path / "out", tokenizer, shard_bytes=shard_bytes)
    assert both(tmp_path / "out") == both(tmp_path / "plain")
    assert done.manifest["documents"] == len(MANY)
    tokenized([str(folder / "**" / "*")], tmp_path / "globbed", tokenizer, shard_bytes=shard_bytes)
    assert read_dataset(tmp_path / "globbed").tokens == read_dataset(tmp_path / "plain").tokens


def test_nulls_and_texts_that_are_not_utf8_are_rows_set_aside(tmp_path: Path, tokenizer: Path) -> None:
    damaged = pa.array([b"good", b"bad\xff", b"", None], pa.binary())
    strings = pa.StringArray.from_buffers(4, damaged.buffers()[1], damaged.buffers()[2], damaged.buffers()[0])
    parquet.write_table(pa.table({"text": strings}), tmp_path / "a.parquet", row_group_size=2)
    done = tokenized([tmp_path / "a.parquet"], tmp_path / "out", tokenizer, max_rejected=0.5, shard_bytes=1)
    rows = [json.loads(line) for line in (tmp_path / "out.rejected.jsonl").read_text().splitlines()]
    assert [(row["row"], row["reason"]) for row in rows] == [(2, "not UTF-8 at byte 4"), (4, "'text' is null")]
    assert (done.manifest["documents"], done.manifest["empty"]) == (1, 1)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.arrow"])
def test_a_truncated_file_is_refused_by_name(tmp_path: Path, tokenizer: Path, name: str) -> None:
    """However many of its rows could be read: what is missing would be missed by nobody."""
    path = tmp_path / name
    write: dict[str, Callable[[], Any]] = {
        "a.jsonl.gz": lambda: path.write_bytes(gzip.compress(_lines(MANY))),
        "a.jsonl.zst": lambda: _zst(path, _lines(MANY)),
        "a.parquet": lambda: parquet.write_table(_table(list(MANY)), path),
        "a.arrow": lambda: _arrow(path, MANY),
    }
    write[name]()
    whole = path.read_bytes()
    for share in (0.3, 0.6, 0.98):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(
            RefusedInput, match=f"{name}.*(damaged|truncated|cannot read)|cannot read .*{name}"
        ) as caught:
            tokenized([path], tmp_path / "out", tokenizer)
        assert "\n" not in str(caught.value)
        assert [p.name for p in tmp_path.iterdir()] == [name]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "arrow"]))
def test_damage_is_refused_or_every_row_accounted_for(
    tmp_path: Path, tokenizer: Path, data: st.DataObject, kind: str
) -> None:
    folder = tmp_path / "fuzz"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path, texts = folder / f"a.{kind}", MANY[:12]
    match kind:
        case "jsonl":
            path.write_bytes(_lines(texts))
        case "jsonl.gz":
            path.write_bytes(gzip.compress(_lines(texts)))
        case "jsonl.zst":
            _zst(path, _lines(texts))
        case "parquet":
            parquet.write_table(_table(list(texts)), path, row_group_size=5)
        case _:
            _arrow(path, texts)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(1, len(content)) | st.just(len(content)))])
    try:
        manifest = tokenized([path], folder / "out", tokenizer, max_rejected=1.0, shard_bytes=500).manifest
    except RefusedInput as refused:
        assert str(refused)
        assert not list(folder.glob("out.[bi]*"))
        return
    rows = manifest["sources"][0]["rows"]
    assert rows == manifest["documents"] + manifest["empty"] + manifest["rejected"]
    if kind == "jsonl":
        assert rows == sum(not line.isspace() and line != b"" for line in path.read_bytes().split(b"\n"))
    listed = folder / "out.rejected.jsonl"
    assert (len(listed.read_text().splitlines()) if listed.exists() else 0) == manifest["rejected"]
    assert read_dataset(folder / "out").tokens == manifest["tokens"]


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda f: f / "none.jsonl", r"none.jsonl does not exist \(nearest: .*one.jsonl\)"),
        (lambda f: f / "*.gz", "matches no file"),
        (lambda f: f / "empty", "has no file that can be read"),
        (lambda f: f / "splits", "holds several splits.*nearest: .*splits/train"),
    ],
)
def test_inputs_that_are_not_there(tmp_path: Path, make: Callable[[Path], Path], rule: str) -> None:
    (tmp_path / "one.jsonl").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "splits" / "train").mkdir(parents=True)
    (tmp_path / "splits" / "dataset_dict.json").write_text("{}")
    (tmp_path / "splits" / "train" / "state.json").write_text("{}")
    with pytest.raises(RefusedInput, match=rule):
        find_sources([str(make(tmp_path))])


def test_no_file_is_read_twice_and_unknown_ones_are_named(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", TEXTS)
    (tmp_path / "readme.rst").write_text("not a document")
    (tmp_path / "link.jsonl").symlink_to("a.jsonl")
    found = find_sources([str(tmp_path), str(tmp_path / "*.jsonl"), str(tmp_path / "a.jsonl")])
    assert [f.path.name for f in found.files] == ["a.jsonl"]
    assert {p.name for p in found.ignored} == {"readme.rst"}
    assert [f.format for f in find_sources([str(tmp_path / "readme.rst")]).files] == ["text"]


def test_a_column_that_holds_no_text_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    parquet.write_table(_table(list(TEXTS)), tmp_path / "a.parquet")
    for key, rule in (("id", "column 'id' holds int64, not text"), ("body", "no column 'body'; it has 'id', 'text'")):
        with pytest.raises(RefusedInput, match=rule):
            tokenized([tmp_path / "a.parquet"], tmp_path / "out", tokenizer, key=key)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet.write_table(_table(list(TEXTS)), tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvironmentFault, match=r"pip install '.\[data\]'"):
        tokenized([tmp_path / "a.parquet"], tmp_path / "out", tokenizer)


# --- tokenizers --------------------------------------------------------------------------------------------------


def test_sentencepiece(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = Path(__file__).parents[1] / "small.model"
    tokenized([jsonl(tmp_path / "a.jsonl", MANY)], tmp_path / "out", model, eod="</s>")
    library = sentencepiece.SentencePieceProcessor(model_file=str(model))
    expected = [i for text in MANY for i in [*library.encode(text), library.eos_id()]]
    assert read_dataset(tmp_path / "out").ids.tolist() == expected


def test_tiktoken(tmp_path: Path) -> None:
    """A vocabulary of bytes and some pairs, under the name whose pattern it then has."""
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([b]): b for b in range(256)} | {b"fr": 256, b"in": 257, b"\xe4\xba\xba": 258, b"fre": 259}
    path = tmp_path / "cl100k_base.tiktoken"
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    found = find_tokenizer(path, EOD)
    assert (found.vocab_size, found.eod_id) == (100277, 100257)
    pattern = (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|"
        r"\s*[\r\n]|\s+(?!\S)|\s"
    )
    library = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    tokenized([jsonl(tmp_path / "a.jsonl", MANY)], tmp_path / "out", path)
    expected = [i for text in MANY for i in [*library.encode_ordinary(text), 100257]]
    assert read_dataset(tmp_path / "out").ids.tolist() == expected


def test_a_hugging_face_folder(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(RefusedInput, match="has no tokenizer"):
        find_tokenizer(tmp_path / "model", EOD)
    shutil.copy(tokenizer, tmp_path / "model" / "tokenizer.json")
    assert find_tokenizer(tmp_path / "model", EOD).sha256 == find_tokenizer(tokenizer, EOD).sha256


@pytest.mark.parametrize(
    ("name", "content", "rule"),
    [
        ("other.tiktoken", "", r"one of OpenAI's encodings \(nearest: r50k_base"),
        ("o200k_base.tiktoken", "no ranks\n", "not a tiktoken file"),
        ("a.model", "junk", "not a SentencePiece model"),
        ("t.json", "{}", "not a tokenizer.json"),
    ],
)
def test_files_that_are_no_tokenizers(tmp_path: Path, name: str, content: str, rule: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(RefusedInput, match=rule):
        find_tokenizer(tmp_path / name, EOD)
