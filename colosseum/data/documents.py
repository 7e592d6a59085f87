"""Documents of JSONL and plain text files, one at a time, with their file and line."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from colosseum.errors import Fault, RefusedInput

JSONL_SUFFIXES = (".jsonl", ".json", ".ndjson")
MAX_BYTES = 1 << 28
"""Maximum size of a document: a file without line ends must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Document:
    text: str
    where: str
    """``file:line`` of a JSONL document, the file name of a plain one."""


def read_documents(paths: Sequence[Path], key: str) -> Iterator[Document]:
    """Documents in order: each line of a .jsonl, .json or .ndjson file, any other file as a whole.

    Raises:
        RefusedInput: a file is missing or not UTF-8, a document is too long, or a line is not a JSON object with a text
            under ``key``.
    """
    for path in paths:
        try:
            if path.suffix in JSONL_SUFFIXES:
                yield from _jsonl(path, key)
            else:
                with path.open("rb") as file:
                    yield Document(_decode(_whole(file.read(MAX_BYTES + 1), str(path)), str(path)), str(path))
        except OSError as error:
            raise RefusedInput(f"cannot read {path}: {error.strerror}") from error


def _jsonl(path: Path, key: str) -> Iterator[Document]:
    # Lines end at "\n" alone: str.splitlines would also cut at U+2028, which is legal inside a JSON string.
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_BYTES + 1), b""), start=1):
            where = f"{path}:{number}"
            _whole(line, where)
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                yield Document(_text(_decode(line, where), key, where), where)


def _whole(data: bytes, where: str) -> bytes:
    if len(data) > MAX_BYTES:
        raise _refused(f"a document has more than {MAX_BYTES >> 20} MiB; cut it", where)
    return data


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refused(f"not UTF-8 at byte {error.start + 1}", where) from error


def _text(line: str, key: str, where: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _refused(f"not JSON: {error}", where) from error
    if not isinstance(row, dict):
        raise _refused("a line must be a JSON object", where)
    if key not in row:
        raise RefusedInput([Fault(path="", value=None, rule=f"no key {key!r}", nearest=tuple(row)[:5], where=where)])
    text = row[key]
    if not isinstance(text, str):
        raise _refused(f"{key!r} must be a string, not {type(text).__name__}", where)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _refused(f"{key!r} contains half a surrogate pair, which is not valid Unicode", where) from error
    return text


def _refused(rule: str, where: str) -> RefusedInput:
    return RefusedInput([Fault(path="", value=None, rule=rule, where=where)])
