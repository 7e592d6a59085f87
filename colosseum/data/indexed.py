"""Megatron's indexed dataset: a ``PREFIX.bin`` of token ids and a ``PREFIX.idx`` with the starts of the documents.

Layout (megatron-core, ``core/datasets/indexed_dataset.py``), little-endian:

    .bin   token ids of all documents, one after another, as uint16 or int32
    .idx   9 bytes  b"MMIDIDX\\0\\0"
           u64      version 1
           u8       code of the token type (8 = uint16, 4 = int32)
           u64      number of sequences N
           u64      number of document bounds, documents + 1
           i32[N]   tokens of each sequence
           i64[N]   byte offset of each sequence in the .bin
           i64[D]   document bounds: index of the first sequence of each document, then N

Here every document is one sequence. Needs numpy only.
"""

from __future__ import annotations

import os
import secrets
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from colosseum.errors import EnvironmentFault, RefusedInput

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
UINT16_VOCAB_LIMIT = 65500
"""megatron-core stores ids as uint16 below this vocabulary size, otherwise as int32."""
_CODES: dict[str, int] = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
_DTYPES = {code: np.dtype(name).newbyteorder("<") for name, code in _CODES.items()}
_HEAD = struct.Struct("<9sQBQQ")
MAX_DOCUMENT_TOKENS = 2**31 - 1
BOUNDS_BLOCK = 1 << 20

AnyIds = npt.NDArray[np.integer]


def token_dtype(vocab_size: int) -> np.dtype[np.integer]:
    """Type of the ids in a .bin of this vocabulary (megatron-core's ``DType.optimal_dtype``)."""
    return _DTYPES[_CODES["uint16" if vocab_size < UINT16_VOCAB_LIMIT else "int32"]]


def bin_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".idx")


class IndexedWriter:
    """Streams documents to an open .bin; the index is written once at the end. Memory: 4 bytes per document."""

    def __init__(self, bin_file: BinaryIO, dtype: np.dtype[np.integer]) -> None:
        self._file = bin_file
        self._dtype = dtype
        self._lengths = array("i")
        self.tokens = 0

    @property
    def documents(self) -> int:
        return len(self._lengths)

    def add_document(self, ids: Sequence[int]) -> None:
        """Appends one document of token ids.

        Raises:
            OverflowError: an id does not fit the token type.
        """
        self._file.write(np.asarray(ids, dtype=self._dtype).tobytes())
        self._lengths.append(len(ids))
        self.tokens += len(ids)

    def write_index(self, idx_file: BinaryIO) -> None:
        """Writes the .idx of all documents added."""
        write_index(idx_file, self._dtype, lambda: iter([np.frombuffer(self._lengths, dtype=np.int32)]))


def write_index(
    idx_file: BinaryIO, dtype: np.dtype[np.integer], blocks: Callable[[], Iterator[npt.NDArray[np.int32]]]
) -> None:
    """Writes the .idx of a .bin whose documents have these lengths.

    Args:
        blocks: the lengths from the first document on, a block at a time; is called several times.
    """
    documents = sum(len(block) for block in blocks())
    idx_file.write(_HEAD.pack(MAGIC, VERSION, _CODES[dtype.name], documents, documents + 1))
    for block in blocks():
        idx_file.write(block.astype("<i4").tobytes())
    start = 0
    for block in blocks():
        ends = start + np.cumsum(block, dtype=np.int64) * dtype.itemsize
        idx_file.write(np.concatenate([np.full(min(1, len(ends)), start), ends[:-1]]).astype("<i8").tobytes())
        start = int(ends[-1]) if len(ends) else start
    for first in range(0, documents + 1, BOUNDS_BLOCK):
        idx_file.write(np.arange(first, min(first + BOUNDS_BLOCK, documents + 1), dtype="<i8").tobytes())


@contextmanager
def write_dataset(prefix: Path, vocab_size: int, *, force: bool = False) -> Iterator[IndexedWriter]:
    """A writer whose .bin and .idx appear under ``prefix`` only if the block ends without an error.

    The .idx is renamed last: readers ignore a .bin without one.

    Raises:
        RefusedInput: the dataset exists and ``force`` is false.
        EnvironmentFault: the disk is full or the folder not writable.
    """
    if prefix.name in ("", "..") or prefix.is_dir():
        raise RefusedInput(f"{prefix} is a folder: give the prefix of the files, without .bin and .idx")
    if not force:
        _refuse_existing(prefix)
    mark = f".tmp-{os.getpid()}-{secrets.token_hex(4)}"
    temporary_bin, temporary_idx = (p.with_name(p.name + mark) for p in (bin_path(prefix), idx_path(prefix)))
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with temporary_bin.open("xb") as bin_file:
            writer = IndexedWriter(bin_file, token_dtype(vocab_size))
            yield writer
            _to_disk(bin_file)
        with temporary_idx.open("xb") as idx_file:
            writer.write_index(idx_file)
            _to_disk(idx_file)
        _publish(temporary_bin, temporary_idx, prefix, force)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {prefix}.bin and .idx: {error.strerror or error}") from error
    finally:
        temporary_bin.unlink(missing_ok=True)
        temporary_idx.unlink(missing_ok=True)


def _refuse_existing(prefix: Path) -> None:
    for path in (bin_path(prefix), idx_path(prefix)):
        if path.exists():
            raise RefusedInput(f"{path} exists; choose another output, or replace it with --force")


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _publish(temporary_bin: Path, temporary_idx: Path, prefix: Path, force: bool) -> None:
    """Renames both files, the .idx last, so that no reader pairs an old file with a new one."""
    if force:
        idx_path(prefix).unlink(missing_ok=True)
        temporary_bin.rename(bin_path(prefix))
        temporary_idx.rename(idx_path(prefix))
        return
    try:
        # link() fails if the name exists: of two writers one wins.
        os.link(temporary_bin, bin_path(prefix))
        os.link(temporary_idx, idx_path(prefix))
    except FileExistsError:
        _refuse_existing(prefix)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedDataset:
    """An indexed dataset on disk, memory-mapped read-only."""

    ids: AnyIds
    """Token ids of all documents, one after another."""
    lengths: npt.NDArray[np.int32]
    """Tokens of each sequence."""

    @property
    def tokens(self) -> int:
        return int(self.ids.shape[0])


def _read_head(file: BinaryIO, path: Path) -> tuple[int, int]:
    """Code of the token type and number of sequences; the file position is then at the lengths.

    Raises:
        RefusedInput: it is not an index, or its size does not match its header.
    """
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        raise RefusedInput(f"{path} is not a Megatron index (it does not start with MMIDIDX)")
    _, version, code, sequences, bounds = _HEAD.unpack(head)
    if version != VERSION or code not in _DTYPES:
        raise RefusedInput(f"{path} has version {version}, token type {code}: not supported")
    body = path.stat().st_size - _HEAD.size
    # A multimodal index has one more byte per sequence.
    if body not in (sequences * 12 + bounds * 8, sequences * 13 + bounds * 8):
        raise RefusedInput(f"{path} is truncated or damaged; tokenize again")
    return code, sequences


def read_lengths(prefix: Path) -> npt.NDArray[np.int32]:
    """Tokens of each sequence, memory-mapped: only accessed parts are read.

    Raises:
        RefusedInput: the .idx cannot be read or is not an index.
    """
    path = idx_path(prefix)
    try:
        with path.open("rb") as file:
            _, sequences = _read_head(file, path)
    except OSError as error:
        raise RefusedInput(f"{path} cannot be read: {error.strerror}") from error
    if not sequences:
        return np.zeros(0, np.int32)
    return np.memmap(path, dtype="<i4", mode="r", offset=_HEAD.size, shape=(sequences,))


@dataclass(frozen=True, slots=True)
class Span:
    """Some consecutive documents of a dataset."""

    documents: int
    tokens: int


def read_span(prefix: Path, choose: Callable[[int], tuple[int, int]]) -> Span:
    """Tokens of the documents [first, last) that ``choose`` makes of their number, from a few bytes of the .idx.

    Raises:
        RefusedInput: the .idx cannot be read or is not an index, or the .bin has another size than it says.
    """
    path = idx_path(prefix)
    try:
        with path.open("rb") as file:
            code, sequences = _read_head(file, path)
            width = _DTYPES[code].itemsize

            def offset(document: int) -> int:
                """Of its first byte in the .bin; for the number of documents, the size of the .bin."""
                last = document == sequences
                if not sequences:
                    return 0
                file.seek(_HEAD.size + 4 * sequences + 8 * (document - last))
                start = int.from_bytes(file.read(8), "little", signed=True)
                if last:
                    file.seek(_HEAD.size + 4 * (sequences - 1))
                    start += int.from_bytes(file.read(4), "little", signed=True) * width
                return start

            first, last = choose(sequences)
            expected, start, end = offset(sequences), offset(first), offset(last)
        size = bin_path(prefix).stat().st_size
    except FileNotFoundError as error:
        raise RefusedInput(f"{error.filename} does not exist; create it with `colosseum data tokenize`") from error
    except OSError as error:
        raise RefusedInput(f"{path} cannot be read: {error.strerror}") from error
    if not 0 <= start <= end <= expected or (end - start) % width:
        raise RefusedInput(f"{path} is damaged: its offsets do not ascend; tokenize again")
    if expected != size:
        raise RefusedInput(f"{bin_path(prefix)} has {size} bytes, but its index says {expected}; tokenize again")
    return Span(documents=last - first, tokens=(end - start) // width)


def read_dataset(prefix: Path) -> IndexedDataset:
    """Memory-maps a .bin/.idx pair.

    Raises:
        RefusedInput: a file is missing, is not an indexed dataset, or the two do not match.
    """
    try:
        with idx_path(prefix).open("rb") as file:
            code, sequences = _read_head(file, idx_path(prefix))
            lengths = np.fromfile(file, dtype="<i4", count=sequences)
            pointers = np.fromfile(file, dtype="<i8", count=sequences)
        dtype = _DTYPES[code]
        expected, size = int(lengths.sum(dtype=np.int64)) * dtype.itemsize, bin_path(prefix).stat().st_size
    except FileNotFoundError as error:
        raise RefusedInput(f"{error.filename} does not exist; create it with `colosseum data tokenize`") from error
    ends = np.cumsum(lengths, dtype=np.int64) * dtype.itemsize
    if (lengths < 0).any() or (pointers[:1] != 0).any() or (pointers[1:] != ends[:-1]).any():
        raise RefusedInput(f"{idx_path(prefix)} is damaged: its offsets do not match its lengths; tokenize again")
    if expected != size:
        raise RefusedInput(f"{bin_path(prefix)} has {size} bytes, but its index says {expected}; tokenize again")
    ids: AnyIds = np.memmap(bin_path(prefix), dtype=dtype, mode="r") if size else np.zeros(0, dtype)
    return IndexedDataset(ids=ids, lengths=lengths)
