"""Reads files that others may have written, with limits: regular files only, maximum size, checked types.

A run folder is shared: a named pipe, a file of a terabyte, a byte that is no UTF-8, or JSON of a thousand levels must
not hang or end the command that lists all runs. What the bytes mean is said by ``records.py``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from colosseum import records
from colosseum.records import parse_object

MAX_JSON = 1 << 24
"""Bytes of a JSON document of ours; the plan of a large job has 100 kB."""
MAX_LINE = 1 << 26
"""Bytes of one line: a ledger's line may hold the sample ids of a thousand steps."""
_BLOCK = 1 << 20


class Unreadable(Exception):
    """A file is there and is not what it should be; the message is a sentence that names it."""


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading, and never waits for a writer.

    Raises:
        FileNotFoundError: there is none.
        Unreadable: it is no regular file, or may not be read.
    """
    try:
        return records.open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except OSError as error:
        why = "is no regular file" if error.errno == errno.EINVAL else f"cannot be read: {error.strerror}"
        raise Unreadable(f"{path.name} {why}") from error


def read_bytes(path: Path, limit: int = MAX_JSON) -> bytes:
    """A whole file.

    Raises:
        FileNotFoundError, Unreadable: as ``open_regular``; also where it has more than ``limit`` bytes.
    """
    with open_regular(path) as file:
        most = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit:,} bytes"
        too_large = f"{path.name} has more than {most}"
        try:
            if os.fstat(file.fileno()).st_size > limit:  # not read first: it may be a file of terabytes
                raise Unreadable(too_large)
            data = file.read(limit + 1)  # it may grow meanwhile
        except OSError as error:
            raise Unreadable(f"{path.name} cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise Unreadable(too_large)
    return data


def read_object(path: Path, limit: int = MAX_JSON) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        FileNotFoundError, Unreadable: as ``read_bytes``; also where it holds something else.
    """
    found = parse_object(read_bytes(path, limit))
    if found is None:
        raise Unreadable(f"{path.name} does not contain a JSON object")
    return found


def rows(path: Path, holding: bytes = b"") -> Iterator[dict[str, Any]]:
    """The JSON objects of a file's lines; truncated, invalid or too long lines are skipped, a missing file is empty.

    Args:
        holding: only lines with these bytes are parsed.

    Raises:
        Unreadable: it is no regular file, or may not be read.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    with file:
        while line := file.readline(MAX_LINE + 1):
            if len(line) > MAX_LINE:
                while line and not line.endswith(b"\n"):
                    line = file.readline(_BLOCK)
            elif holding in line and (row := parse_object(line)) is not None:
                yield row


def tail(path: Path, limit: int) -> list[bytes]:
    """The last lines of a file, of at most ``limit`` bytes in all; the first may be cut. Empty if there is no file.

    Raises:
        Unreadable: it is no regular file, or may not be read.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return []
    with file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
        return file.read(limit).splitlines(keepends=True)
