"""Rows of a piece of the corpus: texts, and those that cannot be used with the reason."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from colosseum.data.tokenization.pieces import Piece, whole
from colosseum.data.tokenization.sources import Compression, SourceFile
from colosseum.errors import INSTALL_DATA, EnvironmentFault, RefusedInput
from colosseum.terminal import one_line

MAX_BYTES = 1 << 28
"""Maximum size of a document: a file without line ends must not fill the memory."""
QUARANTINED_CHARACTERS = 1 << 16
"""Of a row that is set aside; its file and line say where the rest is."""
PARQUET_ROWS = 256
"""Rows decoded at once."""
Progress = Callable[[int], None]
"""Is told how many bytes of the source file were read since the last call."""


@dataclass(frozen=True, slots=True)
class Row:
    """A text, or a row that cannot be used."""

    number: int
    """Line or row within the piece, from 1."""
    text: bytes | None
    """UTF-8; empty for a document without text, None for a blank line."""
    reason: str = ""
    """Why the row cannot be used; empty = it can."""
    raw: str = ""
    """What stands there, if it cannot be used."""


def read_rows(piece: Piece, key: str, progress: Progress = lambda count: None) -> Iterator[Row]:
    """Rows of a piece in order: lines of JSONL, rows of parquet and Arrow, a text file as a whole.

    Raises:
        RefusedInput: the file cannot be read to its end: it is truncated, damaged or not of its format.
        EnvironmentFault: a library that reads the format is missing.
    """
    source = piece.source
    try:
        if source.format == "parquet":
            yield from _parquet_rows(piece, key, progress)
        elif source.format == "arrow":
            yield from _arrow_rows(source, key, progress)
        elif source.format == "jsonl":
            yield from _jsonl_rows(piece, key, progress)
        else:
            yield from _text_row(source, progress)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RefusedInput(f"{source.path} is damaged or truncated: {error}") from error
    except OSError as error:
        raise RefusedInput(f"cannot read {source.path}: {one_line(error.strerror or str(error), 200)}") from error


def texts(files: Sequence[SourceFile], key: str) -> Iterator[str]:
    """Texts of whole files; rows that cannot be used are left out.

    Raises:
        RefusedInput, EnvironmentFault: see ``read_rows``.
    """
    for source in files:
        yield from (row.text.decode() for row in read_rows(whole(source), key) if row.text and not row.reason)


# --- JSONL and text ----------------------------------------------------------------------------------------------


def _jsonl_rows(piece: Piece, key: str, progress: Progress) -> Iterator[Row]:
    # Lines end at "\n" alone: str.splitlines would also cut at U+2028, which is legal inside a JSON string.
    source, end = piece.source, piece.end
    with _opened(source, progress) as file:
        if piece.start:
            file.seek(piece.start)
        at, number = piece.start, 0
        while end is None or at < end:
            line = file.readline(MAX_BYTES + 1)
            if not line:
                break
            number += 1
            at += len(line)
            if source.compression is None:
                progress(len(line))
            if len(line) > MAX_BYTES:
                at += _rest_of_line(file)
                yield Row(number, b"", f"a document has more than {MAX_BYTES >> 20} MiB; cut it", _raw(line))
                continue
            if number == 1 and piece.begins:
                line = line.removeprefix(codecs.BOM_UTF8)
            yield Row(number, None) if line.isspace() or not line else _json_row(number, line, key)


def _rest_of_line(file: IO[bytes]) -> int:
    skipped = 0
    while data := file.readline(1 << 24):
        skipped += len(data)
        if data.endswith(b"\n"):
            break
    return skipped


def _json_row(number: int, line: bytes, key: str) -> Row:
    try:
        return Row(number, json.loads(line.decode())[key].encode())
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 at byte {error.start + 1}"
    except UnicodeEncodeError:
        reason = f"{key!r} contains half a surrogate pair, which is not valid Unicode"
    except (ValueError, RecursionError) as error:
        reason = f"not JSON: {one_line(str(error), 200)}"
    except (KeyError, TypeError, AttributeError):
        reason = _wrong_shape(json.loads(line), key)
    return Row(number, b"", reason, _raw(line))


def _wrong_shape(row: Any, key: str) -> str:
    if not isinstance(row, dict):
        return "a line must be a JSON object"
    if key not in row:
        return f"no key {key!r} (it has {', '.join(repr(k) for k in list(row)[:5]) or 'none'})"
    return f"{key!r} must be a string, not {type(row[key]).__name__}"


def _raw(line: bytes) -> str:
    return line[:QUARANTINED_CHARACTERS].decode("utf-8", "backslashreplace").rstrip("\n")


def _text_row(source: SourceFile, progress: Progress) -> Iterator[Row]:
    with _opened(source, progress) as file:
        data = file.read(MAX_BYTES + 1)
    if source.compression is None:
        progress(source.bytes)
    if len(data) > MAX_BYTES:
        yield Row(1, b"", f"a document has more than {MAX_BYTES >> 20} MiB; cut it", _raw(data))
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        yield Row(1, b"", f"not UTF-8 at byte {error.start + 1}", _raw(data))
        return
    yield Row(1, data)


@contextmanager
def _opened(source: SourceFile, progress: Progress) -> Iterator[IO[bytes]]:
    with source.path.open("rb") as raw:
        if source.compression is None:
            yield raw
            return
        counted = _Counted(raw, progress)
        if source.compression == "gzip":
            with gzip.GzipFile(fileobj=counted) as file:
                yield io.BufferedReader(file, 1 << 20)
        else:
            yield io.BufferedReader(_decompressed(counted, source.compression), 1 << 20)


class _Counted(io.RawIOBase):
    """A file that reports what is read from it."""

    def __init__(self, file: IO[bytes], progress: Progress) -> None:
        self._file = file
        self._progress = progress

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self._progress(count)
        return count


def _decompressed(file: io.RawIOBase, compression: Compression) -> Any:
    # Not `zstandard`: its stream reader takes the end of a truncated file for the end of the data.
    pyarrow = _pyarrow()
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), compression)


# --- parquet and Arrow -------------------------------------------------------------------------------------------


def parquet_file(path: Path) -> Any:
    """An opened parquet file.

    Raises:
        RefusedInput: it is not one.
        EnvironmentFault: ``pyarrow`` is missing.
    """
    pyarrow = _pyarrow()
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise RefusedInput(f"{path} is not a parquet file, or damaged: {one_line(str(error), 200)}") from error


def _parquet_rows(piece: Piece, key: str, progress: Progress) -> Iterator[Row]:
    pyarrow, path = _pyarrow(), piece.source.path
    file = parquet_file(path)
    try:
        groups = range(piece.start, file.metadata.num_row_groups if piece.end is None else piece.end)
        _check_column(file.schema_arrow, path, key)
        share = piece.source.bytes // max(1, file.metadata.num_row_groups)
        number = 0
        for group in groups:
            for batch in file.iter_batches(PARQUET_ROWS, row_groups=[group], columns=[key]):
                yield from _column_rows(batch.column(0), key, number)
                number += batch.num_rows
            progress(share)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise RefusedInput(f"{path} is damaged: {one_line(str(error), 200)}") from error


def _arrow_rows(source: SourceFile, key: str, progress: Progress) -> Iterator[Row]:
    """Rows of a file of Hugging Face ``datasets``: Arrow's stream format."""
    pyarrow = _pyarrow()
    try:
        with source.path.open("rb") as raw, pyarrow.ipc.open_stream(_Counted(raw, progress)) as reader:
            _check_column(reader.schema, source.path, key)
            number = 0
            for batch in reader:
                column = batch.column(batch.schema.get_field_index(key))
                for start in range(0, len(column), PARQUET_ROWS):
                    yield from _column_rows(column.slice(start, PARQUET_ROWS), key, number + start)
                number += batch.num_rows
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise RefusedInput(f"{source.path} is not an Arrow stream, or damaged: {one_line(str(error), 200)}") from error


def _check_column(schema: Any, path: Path, key: str) -> None:
    types = _pyarrow().types
    if key not in schema.names:
        names = ", ".join(repr(name) for name in schema.names[:10])
        raise RefusedInput(f"{path} has no column {key!r}; it has {names}: choose one with --key")
    kind = schema.field(key).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_string_view)
    if not any(is_text(kind) for is_text in texts):
        raise RefusedInput(f"{path}: column {key!r} holds {kind}, not text")


def _column_rows(column: Any, key: str, before: int) -> Iterator[Row]:
    # As bytes: pyarrow does not check that strings are UTF-8.
    for number, data in enumerate(column.cast(_pyarrow().large_binary()).to_pylist(), start=before + 1):
        if data is None:
            yield Row(number, b"", f"{key!r} is null", "null")
            continue
        try:
            if len(data) > MAX_BYTES:
                yield Row(number, b"", f"a document has more than {MAX_BYTES >> 20} MiB; cut it", _raw(data))
                continue
            data.decode()
        except UnicodeDecodeError as error:
            yield Row(number, b"", f"not UTF-8 at byte {error.start + 1}", _raw(data))
            continue
        yield Row(number, data)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.types
    except ImportError as error:
        raise EnvironmentFault(f"parquet, Arrow and .zst files need pyarrow: {INSTALL_DATA}") from error
    return pyarrow
