"""One optimizer step and one validation: forward and backward over microbatches, the loss of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func

from colosseum.recipe.schema import Recipe
from colosseum.runtime import device, parallel
from colosseum.runtime.data import Batch, Samples, microbatches


@dataclass(slots=True)
class Clock:
    """Seconds that a step spent waiting for data."""

    data_s: float = 0.0
    marks: list[tuple[Any, Any]] = field(default_factory=list)


def forward_backward(
    recipe: Recipe, model: list[Any], samples: Samples, first: int, *, forward_only: bool, clock: Clock
) -> torch.Tensor:
    """Runs this rank's microbatches of the step that begins at sample ``first``.

    Returns:
        On the last pipeline stage the mean loss over them and 1, elsewhere zeros: float64 ``[2]``, to be summed over
        all ranks (`mean_loss`).
    """
    mbs, dp = int(recipe.batch.mbs), parallel.dp_size()
    count = recipe.batch.gbs // (mbs * dp)

    def batches() -> Iterator[Batch]:
        source = microbatches(samples, first, count, mbs, dp=dp, dp_rank=parallel.dp_rank())
        while True:
            start = device.wall_s()
            batch = next(source, None)
            clock.data_s += device.wall_s() - start
            if batch is None:
                return
            yield device.to_device(batch)

    iterators = [batches() if _reads(chunk) else None for chunk in model]
    losses = get_forward_backward_func()(
        forward_step_func=_forward_step,
        data_iterator=iterators if len(model) > 1 else iterators[0],
        model=model,
        num_microbatches=count,
        seq_length=recipe.batch.seq_length,
        micro_batch_size=mbs,
        forward_only=forward_only,
    )
    total = torch.zeros(2, dtype=torch.float64, device=device.current())
    if parallel.is_last_stage():
        total[0] = torch.stack([sums[0] / sums[1].clamp(min=1) for sums in losses]).double().mean()
        total[1] = 1
    return total


def _reads(chunk: Any) -> bool:
    """Whether a model chunk needs the batch: the first for its tokens, the last for its labels."""
    from colosseum.runtime.model import unwrapped

    gpt = unwrapped(chunk)
    return bool(gpt.pre_process or gpt.post_process)


def _forward_step(iterator: Iterator[Batch] | None, chunk: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
    """megatron-core's forward step: output of the chunk, and the function that makes a loss of the last one's."""
    if iterator is None:
        return chunk(None, None, None), _no_loss
    batch = next(iterator)
    output = chunk(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    mask_BS = batch["loss_mask"].float()

    def loss(losses_BS: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = (losses_BS.float() * mask_BS).sum()
        # Cloned: the schedule divides the loss in place.
        sums = torch.stack([total.detach().clone(), mask_BS.sum()])
        if parallel_state.get_context_parallel_world_size() > 1:
            dist.all_reduce(sums, group=parallel_state.get_context_parallel_group())
        return total / sums[1].clamp(min=1), sums

    return output, loss


def _no_loss(output: torch.Tensor) -> Any:
    raise AssertionError("only the last chunk has a loss, and it reads batches")


def mean_loss(total: torch.Tensor) -> float:
    """Mean over data-parallel replicas of ``forward_backward``'s result, after it was summed over all ranks."""
    return float(total[0] / total[1])


def validate(recipe: Recipe, model: list[Any], samples: Samples) -> float:
    """Mean loss of the first ``val_steps * gbs`` validation samples; the model is left as it was."""
    for chunk in model:
        chunk.eval()
    total = torch.zeros(2, dtype=torch.float64, device=device.current())
    with torch.no_grad():
        for step in range(recipe.train.val_steps):
            first = step * recipe.batch.gbs
            total += forward_backward(recipe, model, samples, first, forward_only=True, clock=Clock())
    dist.all_reduce(total)
    for chunk in model:
        chunk.train()
    return mean_loss(total)
