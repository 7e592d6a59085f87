"""Tokenizes one shard into its part: ``NAME.bin``, ``NAME.lengths``, ``NAME.rejected``, and ``NAME.json`` at last.

.bin        ids of its documents, each with the end-of-document id
.lengths    int32 a document
.rejected   one JSON object a line: piece, number, reason, text
.json       what was counted; a part without it is not complete
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from colosseum.atomic import to_disk, write_whole
from colosseum.data.indexed import token_dtype
from colosseum.data.tokenization.encoders import TokenizerFile
from colosseum.data.tokenization.engine import EngineDiffers, Fast, Slow, Tokens
from colosseum.data.tokenization.pieces import Piece
from colosseum.data.tokenization.rows import Progress, Row, read_rows
from colosseum.data.tokenization.shards import Shard
from colosseum.errors import EnvironmentFault, RefusedInput

Engine = Literal["fast", "library"]
BATCH_BYTES = 1 << 20
"""Text that is encoded at once."""
BATCH_ROWS = 4096
SUFFIXES = (".bin", ".lengths", ".rejected", ".json", ".progress")


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceCounts:
    """What one piece of a shard came to."""

    rows: int = 0
    """Lines, rows or files that are not blank."""
    lines: int = 0
    """Number of its last one."""
    documents: int = 0
    tokens: int = 0
    empty: int = 0
    """Rows without text, skipped."""
    rejected: int = 0
    text_bytes: int = 0
    sha256: str = ""
    """Of the whole file; only of the piece that begins it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A complete part."""

    engine: Engine
    pieces: tuple[PieceCounts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartJob:
    """A shard to tokenize."""

    shard: Shard
    target: Path
    """Path of the part, without suffix."""
    tokenizer: TokenizerFile
    key: str
    engine: Engine


@dataclass(frozen=True, slots=True)
class Differs:
    """The fast engine must not be used for this corpus."""

    reason: str


def read_part(target: Path, engine: Engine) -> Part | None:
    """A complete part that ``engine`` made; None = there is none."""
    try:
        data = json.loads(target.with_name(f"{target.name}.json").read_bytes())
        part = Part(engine=data["engine"], pieces=tuple(PieceCounts(**piece) for piece in data["pieces"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return part if part.engine == engine else None


@lru_cache(maxsize=2)
def _encoder(tokenizer: TokenizerFile, engine: Engine) -> Fast | Slow:
    return Fast(tokenizer) if engine == "fast" else Slow(tokenizer)


def tokenize_shard(job: PartJob) -> Part | Differs:
    """Writes the part of a shard.

    Raises:
        RefusedInput: a file cannot be read or has changed.
        EnvironmentFault: the part cannot be written, or a library is missing.
    """
    try:
        return _tokenize_shard(job)
    except EngineDiffers as differs:
        return Differs(str(differs))


def _tokenize_shard(job: PartJob) -> Part:
    encoder = _encoder(job.tokenizer, job.engine)
    bin_path, lengths_path, rejected_path, done_path, progress_path = (
        job.target.with_name(f"{job.target.name}{suffix}") for suffix in SUFFIXES
    )
    try:
        with (
            _progress(progress_path) as progress,
            bin_path.open("wb") as ids,
            lengths_path.open("wb") as lengths,
            rejected_path.open("wb") as rejected,
        ):
            writer = _Writer(job, encoder, progress, ids, lengths, rejected)
            pieces = tuple(writer.piece(number, piece) for number, piece in enumerate(job.shard.pieces))
        part = Part(engine=job.engine, pieces=pieces)
        for path in (bin_path, lengths_path, rejected_path):
            to_disk(path)
        write_whole(done_path, json.dumps({"engine": part.engine, "pieces": [asdict(p) for p in pieces]}).encode())
    except OSError as error:
        raise EnvironmentFault(f"cannot write {job.target}: {error.strerror or error}") from error
    return part


class _Writer:
    """The open files of a part."""

    def __init__(
        self,
        job: PartJob,
        encoder: Fast | Slow,
        progress: Progress,
        ids: BinaryIO,
        lengths: BinaryIO,
        rejected: BinaryIO,
    ) -> None:
        self._job = job
        self._encoder = encoder
        self._ids, self._lengths, self._rejected = ids, lengths, rejected
        self._dtype = token_dtype(job.tokenizer.vocab_size)
        self._progress = progress

    def piece(self, number: int, piece: Piece) -> PieceCounts:
        counts = _Counting()
        for batch in _batches(self._good(read_rows(piece, self._job.key, self._progress), number, counts)):
            tokens = self._encoder.encode(batch)
            counts.documents += int(np.count_nonzero(tokens.lengths))
            counts.empty += int(np.count_nonzero(tokens.lengths == 0))
            counts.tokens += self._write(tokens)
            counts.text_bytes += sum(map(len, batch))
        _refuse_changed(piece)
        digest = _sha256(piece.source.path) if piece.begins else ""
        return PieceCounts(sha256=digest, **asdict(counts))

    def _good(self, rows: Iterator[Row], piece: int, counts: _Counting) -> Iterator[bytes]:
        """Texts; the other rows are written to the part's list."""
        for row in rows:
            counts.lines = row.number
            if row.text is None:
                continue
            counts.rows += 1
            if row.reason:
                counts.rejected += 1
                line = {"piece": piece, "number": row.number, "reason": row.reason, "text": row.raw}
                self._rejected.write(json.dumps(line).encode() + b"\n")
            elif row.text:
                yield row.text
            else:
                counts.empty += 1

    def _write(self, tokens: Tokens) -> int:
        """Writes the documents that have ids, each with the end-of-document id; returns the number of all ids."""
        lengths = tokens.lengths[tokens.lengths > 0] + 1
        ids = np.empty(int(lengths.sum()), self._dtype)
        ends = np.cumsum(lengths) - 1
        text = np.ones(len(ids), np.bool_)
        text[ends] = False
        ids[text] = tokens.ids
        ids[ends] = self._job.tokenizer.eod_id
        self._ids.write(ids.tobytes())
        self._lengths.write(lengths.astype("<i4").tobytes())
        return len(ids)


@dataclass(slots=True)
class _Counting:
    rows: int = 0
    lines: int = 0
    documents: int = 0
    tokens: int = 0
    empty: int = 0
    rejected: int = 0
    text_bytes: int = 0


def _batches(texts: Iterator[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_BYTES or len(batch) == BATCH_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _refuse_changed(piece: Piece) -> None:
    path = piece.source.path
    try:
        stat = path.stat()
    except OSError as error:
        raise RefusedInput(f"cannot read {path}: {error.strerror}") from error
    if (stat.st_size, stat.st_mtime_ns) != (piece.source.bytes, piece.source.mtime_ns):
        raise RefusedInput(f"{path} changed while it was read; run the command again")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _progress(path: Path) -> Iterator[Progress]:
    """A sparse file as long as what was read of the shard: whoever shows the progress looks at its size."""
    read = shown = 0

    def add(count: int) -> None:
        nonlocal read, shown
        read += count
        if read - shown >= BATCH_BYTES:
            shown = read
            file.truncate(read)

    with path.open("wb", buffering=0) as file:
        yield add
    path.unlink(missing_ok=True)
