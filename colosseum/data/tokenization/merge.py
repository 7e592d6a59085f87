"""Parts to a dataset: PREFIX.bin, PREFIX.idx, PREFIX.manifest.json and, if rows were set aside, PREFIX.rejected.jsonl.

Everything is written under other names first. The .idx gets its name last: readers ignore a .bin without one.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from colosseum.atomic import to_disk
from colosseum.data.indexed import bin_path, idx_path, token_dtype, write_index
from colosseum.data.tokenization.part import Part, PieceCounts
from colosseum.data.tokenization.shards import Shard

COPY_BYTES = 1 << 24
LENGTHS_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A shard and its complete part."""

    shard: Shard
    part: Part
    target: Path


def manifest_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".manifest.json")


def rejected_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".rejected.jsonl")


def totals(made: Sequence[Made]) -> PieceCounts:
    """Counts of all pieces; ``lines`` is not a sum."""
    pieces = [piece for m in made for piece in m.part.pieces]
    names = ("rows", "documents", "tokens", "empty", "rejected", "text_bytes")
    return PieceCounts(**{name: sum(getattr(piece, name) for piece in pieces) for name in names})


def by_source(made: Sequence[Made]) -> list[dict[str, Any]]:
    """Counts and hash of each source file, in the order of the corpus."""
    files: dict[Path, dict[str, Any]] = {}
    for m in made:
        for piece, counts in zip(m.shard.pieces, m.part.pieces, strict=True):
            row = files.setdefault(
                piece.source.path,
                {"path": str(piece.source.path), "bytes": piece.source.bytes, "sha256": "", "rows": 0}
                | {"documents": 0, "tokens": 0, "empty": 0, "rejected": 0},
            )
            for name in ("rows", "documents", "tokens", "empty", "rejected"):
                row[name] += getattr(counts, name)
            row["sha256"] = row["sha256"] or counts.sha256
    return list(files.values())


def rejected_rows(made: Sequence[Made]) -> Iterator[dict[str, Any]]:
    """Rows that were set aside, with file and line."""
    before: dict[Path, int] = {}
    for m in made:
        with _beside(m.target, ".rejected").open("rb") as file:
            for line in file:
                row = json.loads(line)
                source = m.shard.pieces[row["piece"]].source
                kind = "file" if source.format == "text" else "line" if source.format == "jsonl" else "row"
                number = before.get(source.path, 0) + row["number"]
                where = {} if kind == "file" else {kind: number}
                yield {"file": str(source.path), **where, "reason": row["reason"], "text": row["text"]}
        for piece, counts in zip(m.shard.pieces, m.part.pieces, strict=True):
            before[piece.source.path] = before.get(piece.source.path, 0) + counts.lines


def merge(made: Sequence[Made], prefix: Path, vocab_size: int, building: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the dataset, each file under its own name at the end.

    Args:
        building: folder for the files that are not complete, on the same file system.
        manifest: what the manifest says besides the files' sizes and hashes.
    """
    dtype = token_dtype(vocab_size)
    mark = secrets.token_hex(4)  # where the file system has no locks, two processes may merge
    names = {bin_path(prefix): "bin", idx_path(prefix): "idx", manifest_path(prefix): "manifest"}
    if manifest["rejected"]:
        names[rejected_path(prefix)] = "rejected"
    built = {path: building / f"merged-{mark}.{name}" for path, name in names.items()}
    hashes = {}
    with built[bin_path(prefix)].open("wb") as file:
        hashes["bin"] = _concatenate([_beside(m.target, ".bin") for m in made], file)
    with built[idx_path(prefix)].open("wb") as file:
        write_index(file, dtype, lambda: _lengths(made))
    with built[idx_path(prefix)].open("rb") as file:
        hashes["idx"] = hashlib.file_digest(file, "sha256").hexdigest()
    if manifest["rejected"]:
        with built[rejected_path(prefix)].open("w", encoding="utf-8") as text:
            text.writelines(json.dumps(row) + "\n" for row in rejected_rows(made))
    files = {
        kind: {"bytes": built[path].stat().st_size, "sha256": hashes[kind]}
        for kind, path in (("bin", bin_path(prefix)), ("idx", idx_path(prefix)))
    }
    document = {**manifest, "dtype": dtype.name, "files": files}
    built[manifest_path(prefix)].write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for path in built.values():
        to_disk(path)
    _publish(built, prefix)


def _publish(built: Mapping[Path, Path], prefix: Path) -> None:
    """Renames; whoever reads meanwhile has no .idx, so no old file is paired with a new one."""
    idx_path(prefix).unlink(missing_ok=True)
    if rejected_path(prefix) not in built:
        rejected_path(prefix).unlink(missing_ok=True)
    for path, temporary in sorted(built.items(), key=lambda item: item[0] == idx_path(prefix)):
        temporary.rename(path)
    to_disk(prefix.parent)


def _concatenate(paths: Sequence[Path], file: BinaryIO) -> str:
    """Copies the files one after another; the hash of all."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as part:
            while block := part.read(COPY_BYTES):
                digest.update(block)
                file.write(block)
    file.flush()
    os.fsync(file.fileno())
    return digest.hexdigest()


def _lengths(made: Sequence[Made]) -> Iterator[npt.NDArray[np.int32]]:
    for m in made:
        with _beside(m.target, ".lengths").open("rb") as file:
            while len(block := np.fromfile(file, "<i4", LENGTHS_BLOCK)):
                yield block


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(f"{target.name}{suffix}")
