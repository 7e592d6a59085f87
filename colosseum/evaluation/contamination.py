"""Whether a task's questions stand in the training data: token n-grams that both have.

A token of a question counts as seen if it lies in an n-gram of ten tokens that the training data contain; a question is
dirty from 80% on and clean below 20% (Touvron et al. 2023, arXiv:2307.09288, appendix A.6). N-grams are compared by a
64-bit hash. Memory: 16 MiB and 8 bytes an n-gram of the questions; the data are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from colosseum.data.indexed import read_dataset

LENGTH = 10
DIRTY, CLEAN = 0.8, 0.2
_BLOCK = 1 << 22
"""Tokens at a time."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_FILTER_BITS = 24
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Of the questions of a task with the training data."""

    seen: Mapping[str, float]
    """Share of a question's tokens that the training data contain, by its key; of those with ten tokens and more."""
    short: int
    """Questions that are shorter."""

    @property
    def dirty(self) -> list[str]:
        return [key for key, share in self.seen.items() if share >= DIRTY]

    @property
    def clean(self) -> list[str]:
        return [key for key, share in self.seen.items() if share < CLEAN]


def overlap(
    questions: Mapping[str, Sequence[Sequence[int]]], shards: Sequence[Path], say: Callable[[str], None]
) -> Overlap:
    """How much of each question stands in the training data.

    Args:
        questions: token ids of the texts of each question (the question, each choice), by its key.
        shards: prefixes of indexed datasets of the same tokenizer.

    Raises:
        RefusedInput: a dataset cannot be read.
    """
    hashes = {
        key: [_hashes(np.asarray(ids)) for ids in texts if len(ids) >= LENGTH] for key, texts in questions.items()
    }
    wanted = np.unique(np.concatenate([np.empty(0, np.uint64), *(h for its in hashes.values() for h in its)]))
    found = np.zeros(len(wanted), np.bool_)
    for shard in shards:
        for done, block in _blocks(shard):
            found[_places(block, wanted)] = True
            say(f"{shard.name}: {done:,} tokens compared")
    present = wanted[found]
    seen = {key: _share(its, present) for key, its in hashes.items() if its}
    return Overlap(seen=seen, short=len(questions) - len(seen))


def _hashes(ids: npt.NDArray[np.integer]) -> Hashes:
    """One for each n-gram."""
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * _FACTOR
    mixed ^= mixed >> np.uint64(29)
    found = np.zeros(max(0, len(ids) - LENGTH + 1), np.uint64)
    for k in range(LENGTH):
        found = found * _FACTOR + mixed[k : k + len(found)]
    return found ^ (found >> np.uint64(32))


def _blocks(shard: Path) -> Iterator[tuple[int, Hashes]]:
    """The n-grams of a dataset, block by block; an n-gram across two blocks is in the second."""
    ids = read_dataset(shard).ids
    for at in range(0, max(len(ids) - LENGTH + 1, 0), _BLOCK):
        part = ids[at : at + _BLOCK + LENGTH - 1]
        yield min(at + _BLOCK, len(ids)), _hashes(part)


def _places(block: Hashes, wanted: Hashes) -> npt.NDArray[np.int64]:
    """Places in ``wanted`` (sorted) of what is in the block."""
    if not len(wanted):
        return np.empty(0, np.int64)
    shift = np.uint64(64 - _FILTER_BITS)
    known = np.zeros(1 << _FILTER_BITS, np.bool_)
    known[(wanted >> shift).astype(np.int64)] = True
    likely = block[known[(block >> shift).astype(np.int64)]]
    at = np.minimum(np.searchsorted(wanted, likely), len(wanted) - 1)
    found: npt.NDArray[np.int64] = at[wanted[at] == likely]
    return found


def _share(texts: Sequence[Hashes], present: Hashes) -> float:
    """Share of a question's tokens that lie in an n-gram that is present."""
    tokens = covered = 0
    for hashes in texts:
        length = len(hashes) + LENGTH - 1
        marks = np.zeros(length + 1, np.int64)
        for start in np.flatnonzero(np.isin(hashes, present)):
            marks[start] += 1
            marks[start + LENGTH] -= 1
        covered += int((np.cumsum(marks)[:length] > 0).sum())
        tokens += length
    return covered / tokens
