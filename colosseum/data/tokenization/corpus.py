"""A corpus of text to a Megatron .bin/.idx pair: all shards, on all cores, and what happens between runs.

Finished shards lie in PREFIX.parts until the dataset is complete. A run that was killed at any moment is continued by
the same command, and the files are the same to the byte as without the kill.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from colosseum.atomic import write_whole
from colosseum.data.indexed import bin_path, idx_path
from colosseum.data.tokenization import engine
from colosseum.data.tokenization.encoders import TokenizerFile
from colosseum.data.tokenization.merge import (
    Made,
    by_source,
    manifest_path,
    merge,
    rejected_rows,
    totals,
)
from colosseum.data.tokenization.part import Differs, Engine, PartJob, read_part, tokenize_shard
from colosseum.data.tokenization.shards import Shard, divide, shard_bytes_of
from colosseum.data.tokenization.sources import Sources
from colosseum.data.workers import work
from colosseum.errors import EnvironmentFault, Fault, RefusedInput

MANIFEST_SCHEMA = "colosseum.corpus/1"
SHOWN_FAULTS = 5
HOPELESS = 0.5
"""Share of rejected rows that ends a run before its end: a wrong --key, or files of another kind."""
ENOUGH_ROWS = 1000
_DIFFERS = "engine.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """What the user says of a corpus; ledgers and blends carry it on."""

    name: str = ""
    licence: str = ""
    language: str = ""
    domain: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a corpus is."""

    bytes_done: int
    bytes_total: int
    documents: int
    tokens: int
    rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """What is tokenized, and to where."""

    sources: Sources
    prefix: Path
    tokenizer: TokenizerFile
    key: str = "text"
    tags: Tags = Tags()
    max_rejected: float = 0.0
    """Maximum share of rows that cannot be used."""
    shard_bytes: int | None = None
    """Bytes of source files per shard; None = by the size of the corpus."""

    @property
    def parts(self) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}.parts")

    def shards(self) -> list[Shard]:
        return divide(self.sources.files, self.shard_bytes or shard_bytes_of(self.sources.files))

    def target(self, shard: Shard) -> Path:
        return self.parts / shard.name(f"{self.tokenizer.sha256} {self.tokenizer.eod} {self.key}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A complete dataset."""

    manifest: dict[str, Any]
    notes: tuple[str, ...]
    already: bool
    """It was complete before."""


def tokenize_corpus(
    corpus: Corpus,
    *,
    force: bool = False,
    processes: int | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Finished:
    """Tokenizes all shards that have no part yet, then merges.

    Args:
        force: replace another dataset at the same place.
        say: receives a sentence about what is done otherwise than expected.

    Raises:
        RefusedInput: another dataset is there, a file cannot be read, too many rows cannot be used, or none has text.
        EnvironmentFault: the disk is full, the folder not writable, or a library is missing.
    """
    _refuse_folder(corpus.prefix)
    shards = corpus.shards()
    identity = _identity(corpus, shards)
    if (complete := _complete(corpus.prefix, identity)) is not None:
        shutil.rmtree(corpus.parts, ignore_errors=True)
        return Finished(manifest=complete, notes=(), already=True)
    if not force:
        _refuse_existing(corpus)
    try:
        with _alone(corpus.parts):
            chosen, note = choose_engine(corpus)
            if note:
                say(note)
            made = _made(corpus, shards, chosen, processes, on_progress, say)
            finished = _finish(corpus, made, identity)
            shutil.rmtree(corpus.parts, ignore_errors=True)
            return finished
    except OSError as error:
        raise EnvironmentFault(f"cannot write {corpus.prefix}: {error.strerror or error}") from error


def choose_engine(corpus: Corpus) -> tuple[Engine, str]:
    """The engine of this corpus, and why it is not the fast one."""
    if known := _differs(corpus):
        return "library", known
    if reason := engine.usable(corpus.tokenizer):
        return "library", f"{reason}; the tokenizer's own library encodes, which takes about 20 times as long"
    return "fast", ""


def _made(
    corpus: Corpus,
    shards: Sequence[Shard],
    chosen: Engine,
    processes: int | None,
    on_progress: Callable[[Progress], None],
    say: Callable[[str], None],
) -> list[Made]:
    try:
        return _all_parts(corpus, shards, chosen, processes, on_progress)
    except engine.EngineDiffers as differs:
        reason = f"gigatoken gives {differs}; all is encoded by the tokenizer's own library"
        write_whole(corpus.parts / _DIFFERS, json.dumps({"reason": reason}).encode())
        say(reason)
        return _all_parts(corpus, shards, "library", processes, on_progress)


def _all_parts(
    corpus: Corpus,
    shards: Sequence[Shard],
    chosen: Engine,
    processes: int | None,
    on_progress: Callable[[Progress], None],
) -> list[Made]:
    targets = [corpus.target(shard) for shard in shards]
    parts = {n: part for n, target in enumerate(targets) if (part := read_part(target, chosen)) is not None}
    jobs = {
        n: PartJob(shard=shard, target=targets[n], tokenizer=corpus.tokenizer, key=corpus.key, engine=chosen)
        for n, shard in enumerate(shards)
        if n not in parts
    }
    numbers = list(jobs)

    def show() -> None:
        on_progress(_progress(corpus, [_of(shards[n], parts[n], targets[n]) for n in parts]))

    show()
    for position, result in work(tokenize_shard, list(jobs.values()), processes, while_waiting=show):
        if isinstance(result, Differs):
            raise engine.EngineDiffers(result.reason)
        parts[numbers[position]] = result
        _refuse_hopeless(corpus, [_of(shards[n], parts[n], targets[n]) for n in sorted(parts)])
    show()
    return [_of(shards[n], parts[n], targets[n]) for n in range(len(shards))]


def _of(shard: Shard, part: Any, target: Path) -> Made:
    return Made(shard=shard, part=part, target=target)


def _progress(corpus: Corpus, made: Sequence[Made]) -> Progress:
    counts = totals(made)
    done = sum(_shard_bytes(m.shard) for m in made)
    for path in corpus.parts.glob("*.progress"):
        try:
            done += path.stat().st_size
        except FileNotFoundError:
            continue
    total = sum(source.bytes for source in corpus.sources.files)
    return Progress(
        bytes_done=min(done, total),
        bytes_total=total,
        documents=counts.documents,
        tokens=counts.tokens,
        rejected=counts.rejected,
    )


def _shard_bytes(shard: Shard) -> int:
    return sum(piece.bytes for piece in shard.pieces)


# --- what is refused ---------------------------------------------------------------------------------------------


def _refuse_hopeless(corpus: Corpus, made: Sequence[Made]) -> None:
    counts = totals(made)
    if counts.rows >= ENOUGH_ROWS and counts.rejected > max(HOPELESS, corpus.max_rejected) * counts.rows:
        raise _too_many(corpus, made)


def _refuse_rejected(corpus: Corpus, made: Sequence[Made]) -> None:
    counts = totals(made)
    if counts.rejected > corpus.max_rejected * counts.rows:
        raise _too_many(corpus, made)
    if not counts.documents:
        raise RefusedInput("the input has no document with text")


def _too_many(corpus: Corpus, made: Sequence[Made]) -> RefusedInput:
    counts = totals(made)
    faults = [
        Fault(path="", value=None, rule=row["reason"], where=_where(row))
        for row in islice(rejected_rows(made), SHOWN_FAULTS)
    ]
    share = counts.rejected / counts.rows
    rule = (
        f"{counts.rejected:,} of {counts.rows:,} rows cannot be used ({share:.2%}), more than --max-rejected"
        f" {corpus.max_rejected:g}; nothing was written but {corpus.parts}, with which the command continues"
    )
    return RefusedInput([*faults, Fault(path="", value=None, rule=rule)])


def _where(row: dict[str, Any]) -> str:
    number = row.get("line", row.get("row"))
    return row["file"] if number is None else f"{row['file']}:{number}"


def _refuse_folder(prefix: Path) -> None:
    if prefix.name in ("", "..") or prefix.is_dir():
        raise RefusedInput(f"{prefix} is a folder: give the prefix of the files, without .bin and .idx")


def _refuse_existing(corpus: Corpus) -> None:
    prefix = corpus.prefix
    for path in (bin_path(prefix), idx_path(prefix)):
        # A lone .bin beside the parts is what a merge that was killed had renamed.
        if path.exists() and not (path == bin_path(prefix) and corpus.parts.is_dir()):
            raise RefusedInput(f"{path} exists; choose another output, or replace it with --force")


# --- between runs ------------------------------------------------------------------------------------------------


def _identity(corpus: Corpus, shards: Sequence[Shard]) -> str:
    """Changes with whatever the dataset or its manifest is made of."""
    names = [corpus.target(shard).name for shard in shards]
    return hashlib.sha256(json.dumps([names, asdict(corpus.tags)]).encode()).hexdigest()


def _complete(prefix: Path, identity: str) -> dict[str, Any] | None:
    """The manifest of a dataset that was made of exactly this."""
    if not (idx_path(prefix).is_file() and bin_path(prefix).is_file()):
        return None
    try:
        manifest = json.loads(manifest_path(prefix).read_bytes())
        same = manifest["schema"] == MANIFEST_SCHEMA and manifest["identity"] == identity
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return manifest if same else None


def _finish(corpus: Corpus, made: Sequence[Made], identity: str) -> Finished:
    _refuse_rejected(corpus, made)
    counts, tokenizer = totals(made), corpus.tokenizer
    manifest: dict[str, Any] = {
        "schema": MANIFEST_SCHEMA,
        "identity": identity,
        **asdict(corpus.tags),
        "documents": counts.documents,
        "tokens": counts.tokens,
        "empty": counts.empty,
        "rejected": counts.rejected,
        "text_bytes": counts.text_bytes,
        "key": corpus.key,
        "tokenizer": {
            "path": str(tokenizer.path),
            "kind": tokenizer.kind,
            "sha256": tokenizer.sha256,
            "vocab_size": tokenizer.vocab_size,
            "eod": tokenizer.eod,
            "eod_id": tokenizer.eod_id,
        },
        "engine": engine.version(made[0].part.engine, tokenizer),
        "sources": by_source(made),
    }
    merge(made, corpus.prefix, tokenizer.vocab_size, corpus.parts, manifest)
    return Finished(manifest=json.loads(manifest_path(corpus.prefix).read_bytes()), notes=(), already=False)


def _differs(corpus: Corpus) -> str:
    try:
        return str(json.loads((corpus.parts / _DIFFERS).read_bytes())["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """The folder of parts, of which one process at a time has the use.

    Raises:
        EnvironmentFault: another one has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EnvironmentFault(f"another process works in {folder}; wait for it to end") from error
        except OSError:
            pass  # no locks here (some NFS): two processes do the same work twice, with the same bytes
        try:
            yield
        except BaseException:
            _drop_unfinished(folder)
            raise
    finally:
        os.close(descriptor)


def _drop_unfinished(folder: Path) -> None:
    """Leaves complete parts only, and no empty folder."""
    for path in folder.iterdir():
        if path.name != _DIFFERS and not (folder / f"{path.stem}.json").is_file():
            path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
