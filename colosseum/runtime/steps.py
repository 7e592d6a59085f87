"""Forward and backward over the micro-batches of a step or a validation, and the sums of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func

from colosseum.recipe.schema import Recipe
from colosseum.runtime import device, parallel
from colosseum.runtime.model import unwrapped
from colosseum.runtime.tasks.base import Batch, Samples, Sums, Task

Batches = Iterator[tuple[Batch, PackedSeqParams | None]]


@dataclass(slots=True)
class Clock:
    """What a step spent."""

    data_s: float = 0.0
    """Seconds waiting for data."""
    computed_tokens: int = 0
    """Of all replicas, padding counted."""


@dataclass(frozen=True, slots=True)
class Totals:
    """A step's sums over all micro-batches and ranks, by name: ``loss``, ``count`` and the task's own."""

    sums: dict[str, float]

    @property
    def loss(self) -> float:
        """Mean over what counts: trained tokens, or pairs."""
        return self.sums["loss"] / max(1.0, self.sums["count"])


def forward_backward(
    recipe: Recipe, task: Task, model: list[Any], samples: Samples, first: int, *, forward_only: bool, clock: Clock
) -> torch.Tensor:
    """Runs this rank's micro-batches of the step that begins at sample ``first``.

    megatron-core sums gradients over micro-batches and ranks and divides them by the number that counts
    (``calculate_per_token_loss``), so no layout changes what a step is the mean of.

    Returns:
        On the last pipeline stage this rank's sums (loss, count, the task's names), elsewhere zeros: float64, to be
        added up over all ranks (`total`).
    """
    mbs, dp = int(recipe.batch.mbs), parallel.dp_size()
    step = samples.micro_batches(first, recipe.batch.gbs, mbs, dp)
    clock.computed_tokens = step.per_replica * dp * step.rows * step.length
    task.before_batches(model, samples, first)

    def batches() -> Batches:
        for number in range(step.per_replica):
            start = device.wall_s()
            batch = step.make(number * dp + parallel.dp_rank())
            longest = int(batch["cu_seqlens"].diff().max()) if step.packed else 0
            batch = device.to_device(on_this_cp_rank(batch))
            clock.data_s += device.wall_s() - start
            yield batch, _boundaries(batch["cu_seqlens"], longest) if step.packed else None

    iterators = [batches() if step.packed or _reads(chunk) else None for chunk in model]
    sums = get_forward_backward_func()(
        forward_step_func=_forward_step(task),
        data_iterator=iterators if len(model) > 1 else iterators[0],
        model=model,
        num_microbatches=step.per_replica,
        seq_length=step.length,
        micro_batch_size=step.rows,
        forward_only=forward_only,
    )
    found = torch.zeros(2 + len(task.names), dtype=torch.float64, device=device.current())
    if parallel.is_last_stage():
        for part in sums:
            found += part.double()
    return found


def total(task: Task, summed: torch.Tensor) -> Totals:
    """``forward_backward``'s result by name, after it was summed over all ranks.

    Tensor-parallel ranks hold the same sums: loss and count are both their multiple.
    """
    shared = parallel_state.get_tensor_model_parallel_world_size()
    values = [value / shared for value in summed.tolist()]
    return Totals(dict(zip(("loss", "count", *task.names), values, strict=True)))


def _reads(chunk: Any) -> bool:
    """Whether a model chunk needs the batch: the first for its tokens, the last for its labels."""
    gpt = unwrapped(chunk)
    return bool(gpt.pre_process or gpt.post_process)


def _boundaries(cu_seqlens: torch.Tensor, longest: int) -> PackedSeqParams:
    """Tells attention and RoPE of every layer where the sequences of a row begin, before context parallelism."""
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_kv=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )


def _forward_step(task: Task) -> Callable[[Batches | None, Any], tuple[torch.Tensor, Callable[..., Any]]]:
    """megatron-core's forward step: output of a chunk, and the function that makes sums of the last one's."""

    def step(iterator: Batches | None, chunk: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        if iterator is None:
            return chunk(None, None, None), _no_loss
        batch, packed = next(iterator)
        output = chunk(batch["tokens"], batch["position_ids"], None, labels=batch["labels"], packed_seq_params=packed)

        def loss(losses_BS: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            sums = task.sums(losses_BS, batch)
            return sums.loss, sums.count, _stacked(task, sums)

        return output, loss

    return step


def _stacked(task: Task, sums: Sums) -> torch.Tensor:
    # Cloned: the schedule may scale the loss in place.
    parts = (sums.loss.detach().clone(), sums.count, *(sums.more[name].detach() for name in task.names))
    return torch.stack([part.float() for part in parts])


def _no_loss(output: torch.Tensor) -> Any:
    raise AssertionError("only the last chunk has a loss, and it reads batches")


def on_this_cp_rank(batch: Batch) -> Batch:
    """This rank's part of every sequence: 2-D tensors ``[B, S]`` → ``[B, S / C]``."""
    ranks, rank = parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank()
    if ranks == 1:
        return batch
    ends = batch["cu_seqlens"].tolist() if "cu_seqlens" in batch else [0, batch["tokens"].size(1)]
    parts = [start + parallel.zigzag_positions((end - start) // ranks, rank, ranks) for start, end in pairwise(ends)]
    positions = torch.cat(parts)
    return {key: tensor[:, positions] if tensor.dim() == 2 else tensor for key, tensor in batch.items()}


def validate(
    recipe: Recipe, task: Task, model: list[Any], samples: Samples, go_on: Callable[[], bool]
) -> Totals | None:
    """Sums over the first ``val_steps * gbs`` validation samples; the model is left as it was.

    Args:
        go_on: called before each batch; must say the same on every rank.

    Returns:
        None if ``go_on`` said no.
    """
    for chunk in model:
        chunk.eval()
    found = torch.zeros(2 + len(task.names), dtype=torch.float64, device=device.current())
    whole = True
    with torch.no_grad():
        for step in range(recipe.train.val_steps):
            if not (whole := go_on()):
                break
            first = step * recipe.batch.gbs
            found += forward_backward(recipe, task, model, samples, first, forward_only=True, clock=Clock())
    for chunk in model:
        chunk.train()
    if not whole:
        return None
    dist.all_reduce(found)
    return total(task, found)
