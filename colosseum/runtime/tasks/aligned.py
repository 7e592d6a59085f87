"""Samples of an alignment file (SFT rows, DPO pairs): an order of their own each epoch, padded or packed to one length
a step."""

from __future__ import annotations

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

from colosseum.data.align.cache import AlignedData, build_cache, encoder_of, open_cache
from colosseum.data.align.encode import spec_of
from colosseum.data.align.order import Order
from colosseum.data.align.rewards import reward_differences
from colosseum.errors import RefusedInput
from colosseum.recipe.base import AUTO
from colosseum.recipe.schema import Recipe
from colosseum.runtime.failures import ConfigFailure, DataFailure
from colosseum.runtime.tasks.base import Batch, MicroBatches, Part, Shown, unpacked
from colosseum.runtime.tasks.packed import Packing

KERNEL_ROWS = 16
"""Sequences are padded to a multiple of this: few shapes, and what FP8 GEMMs take."""
BLOCKWISE_ROWS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedSamples:
    """``size`` samples; a micro-batch of pairs holds all chosen sides, then all rejected ones."""

    data: AlignedData
    file: str
    order: Order | None
    """None: the file's own order again and again (validation)."""
    gbs: int
    size: int
    seq_length: int
    multiple: int
    packing: Packing | None
    """None: each sequence is a row of its own."""
    per_sample: dict[str, npt.NDArray[np.float64]]
    """Figures ``[samples]`` that go with each sample, by the name that they have in a batch."""

    def __len__(self) -> int:
        return self.size

    def numbers(self, indices: Sequence[int]) -> list[int]:
        """Which of the file's samples these are."""
        if self.order is None:
            return [index % len(self.data) for index in indices]
        return [int(self.order.step(index // self.gbs)[index % self.gbs]) for index in indices]

    def micro_batches(self, first: int, count: int, mbs: int, replicas: int) -> MicroBatches:
        if self.packing is not None:
            numbers = self.numbers(range(first, first + count))
            most = mbs * (2 if self.data.pairs else 1) * self.seq_length
            return self.packing.micro_batches(self.data, numbers, most, replicas, self.per_sample)
        longest = int(self._inputs(first, first + count).max())
        length = min(self.seq_length, math.ceil(longest / self.multiple) * self.multiple)

        def batch(indices: Sequence[int]) -> Batch:
            return self._batch(self.numbers(indices), length)

        return unpacked(batch, first, count, mbs, replicas, sides=2 if self.data.pairs else 1, length=length)

    def _batch(self, numbers: list[int], length: int) -> Batch:
        sides = zip(*(self.data.sample(number) for number in numbers), strict=True)
        sequences = [sequence for side in sides for sequence in side]
        shape = len(sequences), length
        tokens_BS, labels_BS, mask_BS = (
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.float32),
        )
        for row, sequence in enumerate(sequences):
            count = len(sequence.ids) - 1
            tokens_BS[row, :count] = sequence.ids[:-1]
            labels_BS[row, :count] = sequence.ids[1:]
            mask_BS[row, :count] = sequence.mask[1:]
        positions_BS = torch.arange(length).repeat(len(sequences), 1)
        batch = {"tokens": torch.from_numpy(tokens_BS), "labels": torch.from_numpy(labels_BS)}
        batch |= {"loss_mask": torch.from_numpy(mask_BS), "position_ids": positions_BS}
        batch["number"] = torch.tensor(numbers)
        return batch | {name: torch.from_numpy(values[numbers]) for name, values in self.per_sample.items()}

    def _inputs(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Input tokens of each sequence, ``[samples]`` or ``[samples, 2]``."""
        return self.data.lengths[self.numbers(range(first, last))] - 1

    def tokens(self, first: int, last: int) -> int:
        return int(self._inputs(first, last).sum()) if last > first else 0

    def tokens_by_source(self, first: int, last: int) -> dict[str, int]:
        return {self.file: self.tokens(first, last)}

    def left_out(self, steps: int) -> str:
        counts = self.data.counts
        if counts.kept == counts.rows or self.order is None:
            return ""
        passes = steps / self.order.steps_per_epoch
        return f"{self.file}: {counts.sentence()}; {steps:,} steps take the rows that are kept {passes:.2f} times"

    def shown(self, index: int) -> Shown:
        sequence = self.data.sample(self.numbers([index])[0])[0]
        ids = sequence.ids.tolist()
        return Shown(source=self.file, ids=ids, masked=len(ids) - 1 - int(sequence.mask[1:].sum()))


def open_data(recipe: Recipe, part: Part, cache: Path) -> AlignedData:
    """The part's file as ids and masks; rank 0 makes the cache where there is none, all ranks map it.

    Raises:
        DataFailure: the file cannot be read, or its rows cannot be trained on.
        ConfigFailure: the tokenizer's vocabulary is larger than the model's.
    """

    def build() -> str:
        spec = spec_of(recipe)
        vocabulary = encoder_of(spec).vocab_size
        if vocabulary > recipe.model.vocab_size:
            sizes = f"has {vocabulary} tokens, but model.vocab_size is {recipe.model.vocab_size}"
            raise ConfigFailure(f"{recipe.tokenizer.path} {sizes}")
        cache.mkdir(parents=True, exist_ok=True)
        return str(build_cache(_file(recipe, part), spec, cache).folder)

    return open_cache(Path(_of_rank_0(build)))


def rewards_of(recipe: Recipe, data: AlignedData, part: Part) -> npt.NDArray[np.float64]:
    """``[samples]``: the rewards that the part's file gives, chosen minus rejected; every rank calls it.

    Raises:
        DataFailure: a row has none.
    """
    found: npt.NDArray[np.float64] = _of_rank_0(lambda: reward_differences(_file(recipe, part), data.rows.tolist()))
    return found


def _file(recipe: Recipe, part: Part) -> Path:
    file = recipe.data.train if part == "train" else recipe.data.validation
    if file is None:
        raise ConfigFailure(f"data.{'train' if part == 'train' else 'validation'} is not set")
    return Path(file)


def _of_rank_0(make: Callable[[], Any]) -> Any:
    """What ``make`` gives on rank 0, on every rank."""
    found: list[Any] = [None]
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            found = [make()]
        except RefusedInput as refused:
            raise DataFailure(" ".join(str(refused).split())) from refused
    if dist.is_initialized():
        dist.broadcast_object_list(found)
    return found[0]


def samples_of(
    recipe: Recipe, data: AlignedData, part: Part, size: int, per_sample: dict[str, npt.NDArray[np.float64]]
) -> AlignedSamples:
    """Training samples in their epochs' orders, validation samples as they stand in the file.

    Raises:
        DataFailure: the training file has fewer rows than a step takes.
    """
    try:
        order = order_of(recipe, data) if part == "train" else None
    except RefusedInput as refused:
        raise DataFailure(" ".join(str(refused).split())) from refused
    file = recipe.data.train if part == "train" else recipe.data.validation
    return AlignedSamples(
        data=data,
        file=str(file),
        order=order,
        gbs=recipe.batch.gbs,
        size=size,
        seq_length=recipe.batch.seq_length,
        multiple=multiple_of(recipe),
        packing=packing_of(recipe),
        per_sample=per_sample,
    )


def order_of(recipe: Recipe, data: AlignedData) -> Order:
    task = recipe.alignment
    assert task is not None
    return Order(samples=len(data), gbs=recipe.batch.gbs, seed=recipe.train.seed, shuffle=task.shuffle)


def order_identity(recipe: Recipe, data: AlignedData) -> str:
    """Identity of the order: the cache is named by the content of file, tokenizer and template."""
    order = order_of(recipe, data)
    text = json.dumps([data.folder.name.rpartition("-")[2], order.samples, order.gbs, order.seed, order.shuffle])
    return hashlib.sha256(text.encode()).hexdigest()


def packing_of(recipe: Recipe) -> Packing | None:
    """How the recipe packs, None if it does not."""
    task, par = recipe.alignment, recipe.parallelism
    if task is None or not task.packing:
        return None
    pp, vpp = int(par.pp), int(par.vpp)
    return Packing(
        sequence_multiple=2 * int(par.cp) if int(par.cp) > 1 else 1,
        row_multiple=None if has_buffers(recipe) else multiple_of(recipe),
        seq_length=recipe.batch.seq_length,
        group=(par.microbatch_group_size_per_vp_stage or pp) if vpp > 1 else 1,
    )


def has_buffers(recipe: Recipe) -> bool:
    """Whether communication buffers of a fixed size are made (userbuffers): every step has their length."""
    return recipe.overlap.tp_comm not in (False, AUTO)


def multiple_of(recipe: Recipe) -> int:
    """What a padded length must be a multiple of; the whole sequence length where buffers are made for it.

    Context parallelism cuts a sequence into 2 * cp chunks, sequence parallelism each rank's part into tp (Megatron);
    FP8 GEMMs take rows in multiples of 16, blockwise scaling of 128 (Transformer Engine).
    """
    par, precision = recipe.parallelism, recipe.precision
    if has_buffers(recipe):
        return recipe.batch.seq_length
    tp, cp = int(par.tp), int(par.cp)
    ranks = cp * (tp if par.sequence_parallel else 1)
    rows = {"none": 1, "blockwise": BLOCKWISE_ROWS}.get(precision.fp8, KERNEL_ROWS)
    return math.lcm(KERNEL_ROWS, ranks * rows, cp * math.lcm(2, tp))
