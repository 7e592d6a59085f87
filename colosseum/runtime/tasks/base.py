"""What a task gives the loop: its samples, its loss as sums, its metrics. Loop, saving and layouts name no task.

Legend: B sequences of a micro-batch, S sequence (of this context-parallel rank).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from colosseum.recipe.source import Source
from colosseum.runtime.stability.ladder import Event

Batch = dict[str, torch.Tensor]
"""Tensors of a micro-batch. Always ``tokens``, ``labels``, ``position_ids`` ``[B, S]``; of a packed row also
``cu_seqlens`` ``[sequences + 1]``, where its sequences begin; the others are the task's."""
Part = Literal["train", "valid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One sequence of a sample."""

    source: str
    ids: list[int]
    masked: int
    """Targets that the loss does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatches:
    """The micro-batches of one step over all replicas, all of one shape; replica r takes r, r + replicas, …"""

    per_replica: int
    rows: int
    """B of each."""
    length: int
    """S of each, before context parallelism cuts it."""
    packed: bool
    """A row holds several sequences."""
    make: Callable[[int], Batch]


class Samples(Protocol):
    """Samples in the order in which they are trained on."""

    def micro_batches(self, first: int, count: int, mbs: int, replicas: int) -> MicroBatches:
        """Those of the step that takes samples ``first`` to ``first + count - 1``."""
        ...

    def tokens(self, first: int, last: int) -> int:
        """Tokens that samples ``first`` to ``last - 1`` hold, padding not counted."""
        ...

    def tokens_by_source(self, first: int, last: int) -> dict[str, int]:
        """The same by source."""
        ...

    def __len__(self) -> int: ...

    def shown(self, index: int) -> Shown:
        """A sample as the model sees it, for the data probe."""
        ...

    def left_out(self, steps: int) -> str:
        """What of the file is not trained on in ``steps`` steps, in a sentence; empty = nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What this rank's part of a micro-batch adds to its step.

    Summed over micro-batches, replicas and context-parallel ranks; the step's loss is ``loss / count``.
    """

    loss: torch.Tensor
    """Scalar with its graph."""
    count: torch.Tensor
    """Integer scalar: trained tokens, or pairs."""
    more: dict[str, torch.Tensor]
    """Scalars by the task's ``names``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a task may ask for before the run's own state is loaded."""

    model: list[Any]
    references: Path
    """Folder of what is computed once for the whole run."""
    load_start: Callable[[Source | None], None]
    """Puts the weights of a checkpoint, named as in ``checkpoint.from``, into the model; None: those of the start."""
    identity_of: Callable[[Source | None], str]
    """Which weights these are."""


def unpacked(
    batch: Callable[[Sequence[int]], Batch], first: int, count: int, mbs: int, replicas: int, *, sides: int, length: int
) -> MicroBatches:
    """``mbs`` samples a micro-batch, each of ``sides`` sequences padded to ``length``.

    Args:
        batch: makes the micro-batch of these samples.
    """

    def make(number: int) -> Batch:
        return batch(range(first + number * mbs, first + (number + 1) * mbs))

    per_replica = count // (mbs * replicas)
    return MicroBatches(per_replica=per_replica, rows=mbs * sides, length=length, packed=False, make=make)


def token_sums(losses_BS: torch.Tensor, batch: Batch) -> Sums:
    """Cross-entropy and number of the tokens in ``loss_mask``."""
    mask_BS = batch["loss_mask"].float()
    return Sums(loss=(losses_BS.float() * mask_BS).sum(), count=mask_BS.sum().int(), more={})


class Task(Protocol):
    """One kind of training."""

    @property
    def names(self) -> tuple[str, ...]:
        """Sums that `metrics` reads, besides loss and count."""
        ...

    def prepare(self, setup: Setup) -> None:
        """Called once, by every rank, before the run's own state is loaded and before `samples`."""
        ...

    def samples(self, part: Part, size: int) -> Samples:
        """``size`` samples for training, or those that each validation reads; every rank calls it.

        Raises:
            DataFailure: the data are missing, broken or too few.
            ConfigFailure: the tokenizer does not fit.
        """
        ...

    def sample_order(self) -> str:
        """Identity of the order in which samples come: a position in one means nothing in another."""
        ...

    def before_batches(self, model: list[Any], samples: Samples, first: int) -> None:
        """Called before the micro-batches of the step (or validation batch) that begins at sample ``first``."""
        ...

    def sums(self, losses_BS: torch.Tensor, batch: Batch) -> Sums:
        """The micro-batch's sums from the cross-entropy of each token."""
        ...

    def metrics(self, totals: dict[str, float]) -> dict[str, float]:
        """The task's own fields of a metrics row, from a step's sums (``names`` and ``count``)."""
        ...

    def notice(self, metrics: dict[str, float]) -> Event | None:
        """What the metrics of a training step say of the run, for events.jsonl."""
        ...
