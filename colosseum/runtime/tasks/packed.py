"""Packed steps: the samples of a step share rows, each sequence attending to itself alone.

A step has the samples that it has without packing, so its loss, its gradient and the place in the data are the same.
A row holds at most the tokens of an unpacked micro-batch: mbs * seq_length, twice that of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from colosseum.data.align.cache import AlignedData
from colosseum.data.align.packing import pack, pack_row, padded_sizes
from colosseum.runtime.tasks.base import Batch, MicroBatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """What layout and precision ask of packed rows."""

    sequence_multiple: int
    """Each sequence is padded to a multiple of it: context parallelism cuts each into 2 * cp pieces."""
    row_multiple: int | None
    """Each row is (SP, FP8); None: rows have the most tokens that one may have."""
    seq_length: int
    group: int
    """A replica's micro-batches are a multiple of it (interleaved pipeline)."""

    def micro_batches(
        self,
        data: AlignedData,
        numbers: Sequence[int],
        most: int,
        replicas: int,
        per_sample: dict[str, npt.NDArray[np.float64]],
    ) -> MicroBatches:
        """The rows of a step; where replicas or the pipeline need more of them than there are, empty ones.

        Args:
            numbers: the step's samples.
            most: tokens of a row.
        """
        lengths = data.lengths[list(numbers)] - 1
        rows = pack(lengths, most, self.sequence_multiple).rows
        sizes = padded_sizes(lengths, self.sequence_multiple)
        length = most
        if self.row_multiple is not None:
            longest = max(int(sizes[list(row)].sum()) for row in rows)
            length = min(most, math.ceil(longest / self.row_multiple) * self.row_multiple)
        per_replica = math.ceil(len(rows) / (replicas * self.group)) * self.group

        def make(number: int) -> Batch:
            mine = [numbers[i] for i in rows[number]] if number < len(rows) else []
            return self._batch(data, mine, length, per_sample)

        return MicroBatches(per_replica=per_replica, rows=1, length=length, packed=True, make=make)

    def _batch(
        self, data: AlignedData, numbers: list[int], length: int, per_sample: dict[str, npt.NDArray[np.float64]]
    ) -> Batch:
        sequences = [[(s.ids, s.mask) for s in data.sample(number)] for number in numbers]
        row = pack_row(sequences, length, self.sequence_multiple, self.seq_length)
        batch = {
            "tokens": torch.from_numpy(row.inputs)[None],
            "labels": torch.from_numpy(row.targets)[None],
            "loss_mask": torch.from_numpy(row.loss_mask.astype(np.float32))[None],
            "position_ids": torch.from_numpy(row.position_ids)[None],
            "response": torch.from_numpy(row.owners)[None],
            "cu_seqlens": torch.from_numpy(row.cu_seqlens),
            "number": torch.tensor(numbers, dtype=torch.int64),
        }
        return batch | {name: torch.from_numpy(values[numbers]) for name, values in per_sample.items()}
