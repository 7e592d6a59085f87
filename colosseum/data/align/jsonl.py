"""Lines of a JSONL file, one JSON object each; bad lines are returned, not raised, to check a whole file."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colosseum.data.tokenization.rows import MAX_BYTES
from colosseum.errors import RefusedInput
from colosseum.terminal import one_line


class BadRow(Exception):
    """A row that cannot be used: the finding's code (as in the lint report) and the message."""

    def __init__(self, code: str, reason: str) -> None:
        self.code, self.reason = code, reason
        super().__init__(reason)

    def __reduce__(self) -> tuple[type[BadRow], tuple[str, str]]:
        return BadRow, (self.code, self.reason)


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    """1-based, within the file or the part of it that was read."""
    content: dict[str, Any] | BadRow


def read_lines(path: Path, start: int = 0, end: int | None = None) -> Iterator[Line]:
    """Lines that start in the bytes [start, end) of a file; ``start`` must be the start of a line. Blank lines are
    counted but not returned.

    Raises:
        RefusedInput: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            file.seek(start)
            number = 0
            while (end is None or file.tell() < end) and (data := file.readline(MAX_BYTES + 1)):
                number += 1
                if len(data) > MAX_BYTES:
                    _skip_line(file)
                    yield Line(number, BadRow("not-json", f"a row has more than {MAX_BYTES >> 20} MiB"))
                    continue
                if number == 1 and start == 0:
                    data = data.removeprefix(codecs.BOM_UTF8)
                if data.strip():
                    yield Line(number, _object(data))
    except OSError as error:
        raise RefusedInput(f"cannot read {path}: {error.strerror}") from error


def count_rows(path: Path) -> int:
    """Lines that are not blank.

    Raises:
        RefusedInput: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            rows, is_row = 0, False
            while data := file.readline(1 << 24):
                is_row = is_row or bool(data.strip())
                if data.endswith(b"\n"):
                    rows, is_row = rows + is_row, False
            return rows + is_row
    except OSError as error:
        raise RefusedInput(f"cannot read {path}: {error.strerror}") from error


def _skip_line(file: Any) -> None:
    while (data := file.readline(1 << 24)) and not data.endswith(b"\n"):
        pass


def _object(data: bytes) -> dict[str, Any] | BadRow:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return BadRow("not-utf8", f"not UTF-8 at byte {error.start + 1}")
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        return BadRow("not-json", f"not JSON: {one_line(str(error), 200)}")
    return row if isinstance(row, dict) else BadRow("not-json", "a row must be a JSON object")
