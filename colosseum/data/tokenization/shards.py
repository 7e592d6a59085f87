"""Shards: parts of a corpus that are tokenized one by one, so that a run that was killed continues where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from colosseum.data.tokenization.pieces import Piece, whole
from colosseum.data.tokenization.rows import parquet_file
from colosseum.data.tokenization.sources import SourceFile
from colosseum.errors import RefusedInput

SHARD_BYTES = 1 << 24
"""Bytes of source files per shard: about a second of work."""
MAX_SHARDS = 4096
"""Of a large corpus the shards are larger: each has several files in one folder."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Pieces that are tokenized together: one of a large file, or many small files."""

    pieces: tuple[Piece, ...]

    def name(self, settings: str) -> str:
        """Name of the shard's result: it changes with the files, their range and whatever else decides the tokens."""
        files = [
            (str(p.source.path.resolve()), p.source.bytes, p.source.mtime_ns, p.source.format, p.start, p.end)
            for p in self.pieces
        ]
        return hashlib.sha256(json.dumps([settings, files]).encode()).hexdigest()[:32]


def shard_bytes_of(files: Sequence[SourceFile]) -> int:
    """Bytes of a shard; by powers of two, so that a file more or less rarely changes it."""
    total, size = sum(source.bytes for source in files), SHARD_BYTES
    while total > size * MAX_SHARDS:
        size *= 2
    return size


def divide(files: Sequence[SourceFile], shard_bytes: int) -> list[Shard]:
    """Shards in the order of the corpus: pieces of about ``shard_bytes``; smaller files are put together.

    Raises:
        RefusedInput: a file cannot be read.
    """
    shards: list[Shard] = []
    group: list[Piece] = []
    size = 0
    for source in files:
        pieces = list(_pieces(source, shard_bytes))
        if len(pieces) == 1 and size + source.bytes <= shard_bytes:
            group += pieces
            size += source.bytes
            continue
        if group:
            shards.append(Shard(tuple(group)))
        group, size = [], 0
        if len(pieces) == 1 and source.bytes < shard_bytes:
            group, size = pieces, source.bytes
        else:
            shards += [Shard((piece,)) for piece in pieces]
    if group:
        shards.append(Shard(tuple(group)))
    return shards


def _pieces(source: SourceFile, shard_bytes: int) -> Iterator[Piece]:
    if source.bytes <= shard_bytes or source.compression or source.format in ("text", "arrow"):
        yield whole(source)
        return
    try:
        if source.format == "parquet":
            ranges, groups = _row_groups(source, shard_bytes)
        else:
            with source.path.open("rb") as file:
                ranges, groups = _lines(file, source.bytes, shard_bytes), 0
    except OSError as error:
        raise RefusedInput(f"cannot read {source.path}: {error.strerror or error}") from error
    for start, end in ranges:
        size = (end - start) * source.bytes // groups if groups else end - start
        yield Piece(source=source, start=start, end=end, bytes=size)


def _lines(file: BinaryIO, size: int, shard_bytes: int) -> list[tuple[int, int]]:
    """Byte ranges that start and end at line boundaries; none is empty."""
    ranges, start = [], 0
    while start < size:
        file.seek(min(start + shard_bytes, size) - 1)
        while (data := file.readline(1 << 24)) and not data.endswith(b"\n"):
            pass
        ranges.append((start, file.tell()))
        start = file.tell()
    return ranges


def _row_groups(source: SourceFile, shard_bytes: int) -> tuple[list[tuple[int, int]], int]:
    groups = parquet_file(source.path).metadata.num_row_groups
    step = max(1, groups * shard_bytes // max(1, source.bytes))
    return [(first, min(first + step, groups)) for first in range(0, groups, step)], groups
