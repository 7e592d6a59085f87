"""All rows of an alignment file as token ids and masks on disk, built once and memory-mapped.

docs/contracts.md has the layout. The name of a cache contains a hash of the file's content, the tokenizer,
the template and the sequence length, so a change of any of them builds a new cache.

Parts of the file are tokenised in separate processes and kept until the cache is complete: a build that was killed
continues with the missing parts.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from colosseum.atomic import replacing, to_disk, write_whole
from colosseum.data.align.encode import Encoder, Mask, Spec
from colosseum.data.align.fit import Counts, fit
from colosseum.data.align.jsonl import BadRow, read_lines
from colosseum.data.align.render import Rendered
from colosseum.data.indexed import AnyIds, token_dtype
from colosseum.data.workers import work
from colosseum.errors import EnvironmentFault, Fault, RefusedInput
from colosseum.reading import Unreadable, read_object

SCHEMA = "colosseum.aligned/1"
PART_BYTES = 1 << 24
BATCH_CHARACTERS = 1 << 20
SHOWN_FAULTS = 10
_DONE = "cache.json"


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One token sequence, at most seq_length + 1 long: inputs are ``ids[:-1]``, targets ``ids[1:]``."""

    ids: AnyIds
    mask: Mask
    """Token ``t`` counts as a target (of position ``t - 1``) where ``mask[t]``; ``mask[0]`` is always False."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedData:
    """The samples of a file: rows (SFT) or pairs (DPO), without dropped ones."""

    folder: Path
    pairs: bool
    counts: Counts
    rows: npt.NDArray[np.int64]
    """``[samples]``: 1-based line of the file that each sample comes from."""
    starts: npt.NDArray[np.int64]
    """``[sequences + 1]``: start of each sequence in ``ids``; pair ``i`` has sequences 2i and 2i + 1."""
    ids: AnyIds
    mask: Mask

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """``[samples]`` or, for pairs, ``[samples, 2]`` (chosen, rejected): tokens of each sequence."""
        lengths = np.diff(self.starts)
        return lengths.reshape(-1, 2) if self.pairs else lengths

    def sample(self, index: int) -> tuple[TokenSequence, ...]:
        """One sequence, or chosen and rejected."""
        each = 2 if self.pairs else 1
        return tuple(self._sequence(each * index + side) for side in range(each))

    def _sequence(self, number: int) -> TokenSequence:
        part = slice(self.starts[number], self.starts[number + 1])
        return TokenSequence(self.ids[part], self.mask[part])


def build_cache(
    file: Path,
    spec: Spec,
    folder: Path,
    *,
    processes: int | None = None,
    part_bytes: int = PART_BYTES,
    on_progress: Callable[[int, int], None] = lambda done, parts: None,
) -> AlignedData:
    """Opens the cache of a file under ``folder``; builds it if missing. Several builds may run at once; one writes it.

    Args:
        processes: maximum; default one per core.

    Raises:
        RefusedInput: a row is not of the spec's kind or contains a control string (lists the first few), no row is
            left to train on, the file changed meanwhile, or a file cannot be read.
        EnvironmentFault: out of disk space or memory, or the ``tokenizers`` library is missing.
    """
    encoder_of(spec)
    before = _stat(file)
    target = folder / f"{file.stem[:64]}-{_digest(file, spec)[:24]}"
    if (target / _DONE).is_file():
        return open_cache(target)
    parts = target.with_name(f"{target.name}.parts")
    try:
        parts.mkdir(parents=True, exist_ok=True)
        jobs = [
            _Job(spec=spec, file=file, start=start, end=end, target=parts / f"{start:016d}-{end:016d}.npz")
            for start, end in _ranges(file, part_bytes)
        ]
        results = _run(jobs, processes, on_progress)
        _refuse_bad(file, results)
        if _stat(file) != before:
            raise RefusedInput(f"{file} changed while it was read; run the command again")
        _merge(file, spec, jobs, results, target)
        shutil.rmtree(parts, ignore_errors=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot write the cache {target}: {error.strerror or error}") from error
    return open_cache(target)


def open_cache(folder: Path) -> AlignedData:
    """Memory-maps a complete cache.

    Raises:
        RefusedInput: it is not a complete cache, or it is damaged.
    """
    try:
        head = read_object(folder / _DONE)
        if head["schema"] != SCHEMA:
            raise RefusedInput(f"{folder} is a cache of another version: {head['schema']}")
        starts = np.concatenate([[0], np.cumsum(np.load(folder / "lengths.npy"), dtype=np.int64)])
        data = AlignedData(
            folder=folder,
            pairs=head["kind"] == "preference",
            counts=Counts(**head["counts"]),
            rows=np.load(folder / "rows.npy"),
            starts=starts,
            ids=np.memmap(folder / "ids.bin", np.dtype(head["dtype"]).newbyteorder("<"), "r"),
            mask=np.memmap(folder / "mask.bin", np.bool_, "r"),
        )
    except (OSError, Unreadable, ValueError, TypeError, KeyError) as error:
        raise RefusedInput(f"{folder} is not a complete cache; delete it and run the command again: {error}") from error
    sequences = len(data.rows) * (2 if data.pairs else 1)
    if not len(data.ids) == len(data.mask) == starts[-1] or len(starts) != sequences + 1:
        raise RefusedInput(f"{folder} is damaged; delete it and run the command again")
    return data


# --- parts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Bytes [start, end) of the file, and the file for their tokens."""

    spec: Spec
    file: Path
    start: int
    end: int
    target: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    lines: int
    counts: Counts
    bad: list[tuple[int, str]] = field(default_factory=list)
    """Line within the part, and the message; the first few."""
    bad_rows: int = 0


@lru_cache(maxsize=2)
def encoder_of(spec: Spec) -> Encoder:
    """The encoder of a spec, created once per process."""
    return Encoder(spec)


def _run(jobs: Sequence[_Job], processes: int | None, on_progress: Callable[[int, int], None]) -> list[_Result]:
    results: dict[int, _Result] = {}
    for number, result in work(_encode_part, jobs, processes):
        results[number] = result
        on_progress(len(results), len(jobs))
    return [results[number] for number in range(len(jobs))]


def _encode_part(job: _Job) -> _Result:
    if job.target.is_file():  # left by a build that was killed
        with np.load(job.target) as kept:
            return _Result(lines=int(kept["lines"]), counts=Counts(**json.loads(str(kept["counts"]))))
    encoder = encoder_of(job.spec)
    ids: list[npt.NDArray[np.int32]] = []
    mask: list[Mask] = []
    rows: list[int] = []
    bad: list[tuple[int, str]] = []
    counts, bad_rows, lines = Counts(), 0, 0
    for batch in _batches(job, encoder):
        tokens = iter(encoder.tokens([text for _, texts in batch if not isinstance(texts, BadRow) for text in texts]))
        for number, texts in batch:
            lines = max(lines, number)
            sides = [texts] if isinstance(texts, BadRow) else [next(tokens) for _ in texts]
            wrong = next((s for s in sides if isinstance(s, BadRow)), None)
            if wrong is not None:
                bad_rows += 1
                if len(bad) < SHOWN_FAULTS:
                    bad.append((number, wrong.reason))
                continue
            kept, counts = fit([s for s in sides if not isinstance(s, BadRow)], job.spec.seq_length, counts)
            if kept:
                rows.append(number)
                ids += [s.ids for s in kept]
                mask += [s.mask for s in kept]
    result = _Result(lines=lines, counts=counts, bad=bad, bad_rows=bad_rows)
    if not bad_rows:
        with replacing(job.target) as temporary:
            np.savez(
                temporary,
                lines=lines,
                counts=json.dumps(asdict(counts)),
                ids=np.concatenate([np.zeros(0, np.int32), *ids]).astype(token_dtype(encoder.vocab_size)),
                mask=np.concatenate([np.zeros(0, np.bool_), *mask]),
                lengths=np.array([len(i) for i in ids], np.int32),
                rows=np.array(rows, np.int64),
            )
    return result


def _batches(job: _Job, encoder: Encoder) -> Iterator[list[tuple[int, tuple[Rendered, ...] | BadRow]]]:
    """Line numbers with their texts."""
    batch: list[tuple[int, tuple[Rendered, ...] | BadRow]] = []
    size = 0
    for line in read_lines(job.file, job.start, job.end):
        try:
            texts = encoder.rendered(line.content)
            size += sum(len(t.text) for t in texts)
            batch.append((line.number, texts))
        except BadRow as bad:
            batch.append((line.number, bad))
        if size >= BATCH_CHARACTERS or len(batch) >= 4096:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _ranges(file: Path, part_bytes: int) -> list[tuple[int, int]]:
    """Byte ranges that start and end at line boundaries; none is empty."""
    size, ranges, start = file.stat().st_size, [], 0
    with file.open("rb") as opened:
        while start < size:
            opened.seek(min(start + part_bytes, size) - 1)
            _skip_to_line_end(opened)
            ranges.append((start, opened.tell()))
            start = opened.tell()
    return ranges


def _skip_to_line_end(file: BinaryIO) -> None:
    while (data := file.readline(1 << 24)) and not data.endswith(b"\n"):
        pass


# --- assembly ----------------------------------------------------------------------------------------------------


def _refuse_bad(file: Path, results: Sequence[_Result]) -> None:
    """Raises RefusedInput with the first bad rows of the file."""
    total = sum(r.bad_rows for r in results)
    if not total:
        return
    faults, before = [], 0
    for result in results:
        faults += [Fault(path="", value=None, rule=why, where=f"{file}:{before + line}") for line, why in result.bad]
        before += result.lines
    if total > SHOWN_FAULTS:
        rule = f"{total:,} rows are invalid; `colosseum data lint {file.name}` lists them all"
        faults = [*faults[:SHOWN_FAULTS], Fault(path="", value=None, rule=rule)]
    raise RefusedInput(faults)


def _merge(file: Path, spec: Spec, jobs: Sequence[_Job], results: Sequence[_Result], target: Path) -> None:
    counts = Counts()
    for result in results:
        counts = counts.plus(result.counts)
    if not counts.kept:
        raise RefusedInput(f"{file} has no rows to train on: {counts.sentence()}")
    building = target.with_name(f"{target.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
    building.mkdir()
    try:
        lengths, rows, before, dtype = [], [], 0, ""
        with (building / "ids.bin").open("wb") as ids_file, (building / "mask.bin").open("wb") as mask_file:
            for job, result in zip(jobs, results, strict=True):
                with np.load(job.target) as part:
                    ids_file.write(part["ids"].tobytes())
                    mask_file.write(part["mask"].tobytes())
                    dtype = part["ids"].dtype.name
                    lengths.append(part["lengths"])
                    rows.append(part["rows"] + before)
                before += result.lines
        np.save(building / "lengths.npy", np.concatenate(lengths))
        np.save(building / "rows.npy", np.concatenate(rows))
        head = {"schema": SCHEMA, "kind": spec.kind, "dtype": dtype, "source": file.name, "lines": before}
        head |= {"seq_length": spec.seq_length, "counts": asdict(counts)}
        for path in building.iterdir():
            to_disk(path)
        write_whole(building / _DONE, (json.dumps(head) + "\n").encode())
        _publish(building, target)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _publish(building: Path, target: Path) -> None:
    """Renames the folder to its final name; if two builds race, the first wins, and both wrote the same."""
    if target.is_dir() and not (target / _DONE).is_file():
        shutil.rmtree(target)
    try:
        building.rename(target)
        to_disk(target.parent)
    except OSError:
        if not (target / _DONE).is_file():
            raise


def _stat(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError as error:
        raise RefusedInput(f"cannot read {file}: {error.strerror}") from error
    return found.st_size, found.st_mtime_ns


def _digest(file: Path, spec: Spec) -> str:
    try:
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise RefusedInput(f"cannot read {file}: {error.strerror}") from error
    return hashlib.sha256(f"{content} {spec.digest()}".encode()).hexdigest()
