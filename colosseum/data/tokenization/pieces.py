"""A piece of a source file: what one reader reads."""

from __future__ import annotations

from dataclasses import dataclass

from colosseum.data.tokenization.sources import SourceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A file, or the part [start, end) of it: bytes of plain JSONL, row groups of parquet."""

    source: SourceFile
    start: int = 0
    end: int | None = None
    """None = to the end of a file that is not divided."""
    bytes: int
    """Of the file, about: its share of the corpus."""

    @property
    def begins(self) -> bool:
        return self.start == 0


def whole(source: SourceFile) -> Piece:
    """A file that is not divided."""
    return Piece(source=source, bytes=source.bytes)
