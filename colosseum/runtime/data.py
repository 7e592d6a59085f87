"""Samples of a blend in an order that depends on nothing but seed, data and sequence length.

Sample ``i`` of a run is the same whatever the layout, the batch size and the length of the run: every pass over a
source is one of megatron-core's ``GPTDataset`` with a seed of its own, and the blend's order (megatron-core's greedy
one) is the beginning of any longer order. So a run can be resumed under another layout and extended, and no sample is
skipped or repeated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from megatron.core.datasets import helpers
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split

from colosseum.atomic import replacing
from colosseum.data import parts
from colosseum.data.eod import eod_id
from colosseum.data.identity import dataset_identity
from colosseum.data.indexed import read_dataset
from colosseum.errors import RefusedInput
from colosseum.recipe.schema import BlendEntry, Recipe
from colosseum.runtime.failures import ConfigFailure, DataFailure
from colosseum.runtime.reading import CutIndex
from colosseum.runtime.tasks.base import Batch, MicroBatches, Part, Shown, unpacked

KEYS = ("tokens", "labels", "loss_mask", "position_ids")
_SPLITS = {"train": Split.train, "valid": Split.valid}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What megatron-core's datasets ask a tokenizer for."""

    vocab_size: int
    eod: int

    @property
    def unique_identifiers(self) -> dict[str, int]:
        return {"vocab_size": self.vocab_size, "eod": self.eod}


def vocabulary(recipe: Recipe) -> Vocabulary:
    """The recipe's tokenizer, as far as a blend of token ids needs one.

    Raises:
        ConfigFailure: the file is missing or broken, its vocabulary is larger than the model's, or the masks need the
            end-of-document token and there is no tokenizer.
    """
    tokenizer, size = recipe.tokenizer, recipe.model.vocab_size
    data = recipe.data
    if tokenizer.kind == "null":
        return Vocabulary(size, size - 1)
    masks = [name for name in ("eod_mask_loss", "reset_position_ids") if getattr(data, name)]
    if tokenizer.path is None:
        if masks:
            raise ConfigFailure(f"data.{masks[0]} needs the end-of-document token: set tokenizer.path")
        return Vocabulary(size, -1)
    try:
        found, eod = eod_id(tokenizer.kind, Path(tokenizer.path), tokenizer.eod)
    except RefusedInput as refused:
        raise ConfigFailure(str(refused)) from refused
    if found > size:
        raise ConfigFailure(f"{tokenizer.path} has {found} tokens and model.vocab_size is {size}")
    return Vocabulary(size, eod)


class Source:
    """One dataset of the blend, pass after pass, each in an order of its own."""

    def __init__(self, prefix: str, passes: list[Any], vocab_size: int) -> None:
        self.prefix = prefix
        self._passes = passes
        self._vocab_size = vocab_size

    def __getitem__(self, ordinal: int) -> Batch:
        number, position = divmod(ordinal, len(self._passes[0]))
        sample = self._passes[number][position]
        largest = int(torch.maximum(sample["tokens"].max(), sample["labels"].max()))
        smallest = int(torch.minimum(sample["tokens"].min(), sample["labels"].min()))
        if smallest < 0:
            raise DataFailure(
                f"{self.prefix}.bin holds token id {smallest}: the file is damaged or does not hold token ids"
            )
        if largest >= self._vocab_size:
            raise DataFailure(
                f"{self.prefix}.bin holds token id {largest}, but model.vocab_size is {self._vocab_size}: "
                "it was written with another tokenizer"
            )
        return {key: sample[key] for key in KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendSamples:
    """The samples of a blend: each one whole sequence."""

    sources: tuple[Source, ...]
    source_of: npt.NDArray[np.int16]
    """Source of each sample."""
    ordinals: npt.NDArray[np.int64]
    """Which of its source's samples each one is."""
    seq_length: int

    def __len__(self) -> int:
        return len(self.source_of)

    def __getitem__(self, index: int) -> Batch:
        source = self.sources[int(self.source_of[index])]
        return source[int(self.ordinals[index])]

    def micro_batches(self, first: int, count: int, mbs: int, replicas: int) -> MicroBatches:
        return unpacked(self._batch, first, count, mbs, replicas, sides=1, length=self.seq_length)

    def _batch(self, indices: Sequence[int]) -> Batch:
        rows = [self[index] for index in indices]
        return {key: torch.stack([row[key] for row in rows]) for key in KEYS}

    def tokens(self, first: int, last: int) -> int:
        return (last - first) * self.seq_length

    def tokens_by_source(self, first: int, last: int) -> dict[str, int]:
        counts = np.bincount(self.source_of[first:last], minlength=len(self.sources))
        return {s.prefix: int(n) * self.seq_length for s, n in zip(self.sources, counts, strict=True)}

    def left_out(self, steps: int) -> str:
        return ""

    def shown(self, index: int) -> Shown:
        sample = self[index]
        masked = int((sample["loss_mask"] == 0).sum())
        source = self.sources[int(self.source_of[index])].prefix
        return Shown(source=source, ids=sample["tokens"].tolist(), masked=masked)


def identities(recipe: Recipe) -> tuple[str, ...]:
    """Which data each source is now (`data.identity`); rank 0 reads, all ranks call.

    Raises:
        DataFailure: a file cannot be read.
    """
    found: list[Any] = [None]
    if _rank() == 0:
        try:
            found = [tuple(dataset_identity(Path(entry.path)) for entry in recipe.data.blend)]
        except OSError as error:
            raise DataFailure(f"cannot read {error.filename}: {error.strerror}") from error
    if dist.is_initialized():
        dist.broadcast_object_list(found)
    return tuple(found[0])


def sample_order(recipe: Recipe, which: Sequence[str]) -> str:
    """Identity of the order of a blend's samples, ``which`` being those of its sources."""
    data = recipe.data
    blend = [(identity, entry.weight) for identity, entry in zip(which, data.blend, strict=True)]
    order = json.dumps([blend, data.split, recipe.train.seed, recipe.batch.seq_length])
    return hashlib.sha256(order.encode()).hexdigest()


def build(recipe: Recipe, name: Part, size: int, cache: Path, which: Sequence[str]) -> BlendSamples:
    """The first ``size`` samples of the recipe's blend; all ranks call it, rank 0 writes what the others map.

    Args:
        which: identities of the sources; indices of the order are kept under them.

    Raises:
        DataFailure: a file is missing, broken or too small.
        ConfigFailure: the tokenizer does not fit.
    """
    words = vocabulary(recipe)
    weights = [entry.weight for entry in recipe.data.blend]
    files = _order_files(cache, name, weights, size)
    if _rank() == 0:
        cache.mkdir(parents=True, exist_ok=True)
        order = _blended(weights, size)
        _replace(files[0], order[0])
        _replace(files[1], order[1])
    else:
        _barrier()
        order = np.load(files[0], mmap_mode="r"), np.load(files[1], mmap_mode="r")
    counts = np.bincount(order[0], minlength=len(weights))
    sources = tuple(
        _source(recipe, entry, name, int(count), words, cache, identity)
        for entry, count, identity in zip(recipe.data.blend, counts, which, strict=True)
    )
    if _rank() == 0:
        _barrier()
    return BlendSamples(sources=sources, source_of=order[0], ordinals=order[1], seq_length=recipe.batch.seq_length)


def _order_files(cache: Path, name: Part, weights: list[float], size: int) -> tuple[Path, Path]:
    """Where a blend's order is kept: runs may share a cache, and blends of one size differ by their weights."""
    key = hashlib.sha256(json.dumps(weights).encode()).hexdigest()[:16]
    stem = f"blend-{name}-{size}-{key}"
    return cache / f"{stem}-0.npy", cache / f"{stem}-1.npy"


def _replace(path: Path, array: npt.NDArray[Any]) -> None:
    """Writes beside and renames: ranks of another run may have the old file mapped."""
    with replacing(path) as temporary:
        np.save(temporary, array)


def _blended(weights: list[float], size: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]:
    """Source and ordinal of each sample: at every one the source that lags most behind its share."""
    source_of, ordinals = np.zeros(size, np.int16), np.zeros(size, np.int64)
    if size:
        shares = np.asarray(weights, np.float64) / math.fsum(weights)
        helpers.build_blending_indices(source_of, ordinals, shares, len(weights), size, False)
    return source_of, ordinals


def _source(
    recipe: Recipe, entry: BlendEntry, name: Part, count: int, words: Vocabulary, cache: Path, identity: str
) -> Source:
    seq_length = recipe.batch.seq_length
    try:
        lengths = read_dataset(Path(entry.path)).lengths
    except RefusedInput as refused:
        raise DataFailure(str(refused)) from refused
    config = GPTDatasetConfig(
        random_seed=recipe.train.seed,
        sequence_length=seq_length,
        blend=([entry.path], None),
        split=recipe.data.split,
        path_to_cache=str(cache),
        tokenizer=words,
        reset_position_ids=recipe.data.reset_position_ids,
        reset_attention_mask=False,
        eod_mask_loss=recipe.data.eod_mask_loss,
        create_attention_mask=False,
    )
    if reason := parts.shortage(entry.path, lengths, recipe.data.split, name, seq_length):
        raise DataFailure(reason)
    first, last = parts.documents(recipe.data.split, name, len(lengths))
    tokens = int(lengths[first:last].sum(dtype=np.int64))
    # megatron-core repeats a short validation part until it fills one sequence.
    repeated = 1 if tokens <= seq_length else None
    indexed = IndexedDataset(entry.path, multimodal=False, mmap=True)
    documents = np.arange(first, last, dtype=np.int32)
    passes = math.ceil(count / max(1, (tokens - 1) // seq_length)) or 1

    def one(number: int) -> Any:
        settings = dataclasses.replace(config, random_seed=recipe.train.seed + number)
        # The name is a part of the cache's key: data that are rewritten under the same path have indices of their own.
        key = f"{entry.path} {identity}"
        return GPTDataset(indexed, key, documents, repeated, _SPLITS[name], settings)

    return Source(entry.path, [_built(one, number) for number in range(passes)], words.vocab_size)


def _built(build: Callable[[int], Any], number: int) -> Any:
    """One pass; rank 0 rebuilds each of its indices that a full disk or a crash left incomplete."""
    while True:
        try:
            return build(number)
        except CutIndex as cut:
            if _rank() != 0:
                raise
            cut.path.unlink()


def _rank() -> int:
    return int(dist.get_rank()) if dist.is_initialized() else 0


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()
