"""Clipping, Adam and the model's weights in one pass over the optimizer's tensors: one CUDA kernel, written in Triton.

megatron-core scales the gradients, runs Transformer Engine's Adam and copies the FP32 weights to BF16: three passes,
46 bytes per parameter. One pass moves 30 (measured: docs/performance.md). The mathematics is the same: Adam with
decoupled weight decay (Kingma & Ba 2015; Loshchilov & Hutter 2019), gradients scaled to a norm of ``clip_grad`` first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from colosseum.runtime import device
from colosseum.runtime.optimizer import parts

BLOCK = 4096
"""Elements that one program of the kernel updates."""
CLIP_EPS = 1e-6
"""megatron-core's: gradients are scaled by clip_grad / (norm + 1e-6)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One shard of a weight. All tensors have the same number of elements and are contiguous."""

    grad: torch.Tensor
    weight: torch.Tensor
    """FP32."""
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    model_weight: torch.Tensor
    """BF16: what the model computes with."""


def install(optimizer: Any, clip_grad: float) -> Callable[[float], None] | None:
    """Replaces the inner steps of the optimizer; None, and nothing changed, where the kernel does not apply.

    It applies on a GPU, to the distributed optimizer with FP32 weights and moments of a model in BF16. FP8 weights are
    written by Transformer Engine's own Adam.

    Returns:
        What to call with the gradients' norm before the step, in place of clipping them.
    """
    found = [part for part in parts(optimizer) if not part.is_stub_optimizer]
    if not found or not device.is_cuda() or not all(_applies(part) for part in found):
        return None
    return _OnePass(found, clip_grad).clip


def _applies(part: Any) -> bool:
    return (
        isinstance(part, DistributedOptimizer)
        and not part.config.use_precision_aware_optimizer
        and not any(part.model_fp32_groups)
        and all(type(weight.data) is torch.Tensor for group in part.model_float16_groups for weight in group)
    )


class _OnePass:
    """The steps of megatron-core's inner optimizers, by the kernel."""

    def __init__(self, found: list[Any], clip_grad: float) -> None:
        self.clip_grad, self.scale = clip_grad, 1.0
        for part in found:
            part.optimizer.step = functools.partial(self._update, part)
            part._copy_main_params_to_model_params = _written_already

    def clip(self, norm: float) -> None:
        """Remembers by what the next step scales the gradients."""
        self.scale = min(1.0, self.clip_grad / (norm + CLIP_EPS)) if self.clip_grad > 0 else 1.0

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _update(self, part: Any) -> None:
        """Transformer Engine's ``FusedAdam.step`` in one pass."""
        for number, group in enumerate(part.optimizer.param_groups):
            group["step"] = group.get("step", 0) + 1
            for row in _rows(part, number):
                adam(row, group, self.scale)


def _written_already() -> None:
    """In place of the copy from FP32 to BF16."""


def _rows(part: Any, group: int) -> Iterator[Row]:
    inner = part.optimizer
    for model_weight, weight in zip(
        part.model_float16_groups[group], part.shard_fp32_from_float16_groups[group], strict=True
    ):
        state = inner.state[weight]
        if not state:
            inner.initialize_state(weight, False)
        yield Row(weight.grad, weight, state["exp_avg"], state["exp_avg_sq"], _shard(part, model_weight))


def _shard(part: Any, weight: Any) -> torch.Tensor:
    """This rank's part of a model weight in the buffer that the all-gather reads, flat."""
    buffer, _, bucket = part.model_param_gbuf_map[weight]
    place = part._get_model_param_range_map(weight)["gbuf_world_in_bucket"]
    return part.buffers[buffer].buckets[bucket].param_data.view(-1)[place.start : place.end]


def adam(row: Row, group: dict[str, Any], scale: float) -> None:
    """Updates the weights and moments of a row in place.

    Args:
        group: ``lr``, ``betas``, ``eps``, ``weight_decay``, ``step`` (from 1), as in a torch parameter group.
        scale: of the gradients.
    """
    count = row.weight.numel()
    (beta1, beta2), step = group["betas"], group["step"]
    _kernel()[((count + BLOCK - 1) // BLOCK,)](
        row.grad,
        row.weight,
        row.exp_avg,
        row.exp_avg_sq,
        row.model_weight,
        count,
        scale,
        group["lr"],
        beta1,
        beta2,
        group["eps"],
        group["weight_decay"],
        1 - beta1**step,
        1 - beta2**step,
        BLOCK=BLOCK,
        num_warps=8,
    )


@functools.cache
def _kernel() -> Any:
    """Compiled at the first step; Triton comes with torch for CUDA only."""
    import triton  # type: ignore[import-not-found]
    import triton.language as tl  # type: ignore[import-not-found]

    @triton.jit  # type: ignore[untyped-decorator]
    def kernel(  # type: ignore[no-untyped-def]
        grad_ptr, weight_ptr, avg_ptr, sq_ptr, model_ptr, count,
        scale, lr, beta1, beta2, eps, decay, correction1, correction2, BLOCK: tl.constexpr,
    ):  # fmt: skip
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < count
        grad = tl.load(grad_ptr + at, inside) * scale
        weight = tl.load(weight_ptr + at, inside)
        avg = tl.load(avg_ptr + at, inside) * beta1 + grad * (1 - beta1)
        sq = tl.load(sq_ptr + at, inside) * beta2 + grad * grad * (1 - beta2)
        update = (avg / correction1) / (tl.sqrt(sq / correction2) + eps) + decay * weight
        weight = weight - lr * update
        tl.store(weight_ptr + at, weight, inside)
        tl.store(avg_ptr + at, avg, inside)
        tl.store(sq_ptr + at, sq, inside)
        tl.store(model_ptr + at, weight.to(tl.bfloat16), inside)

    return kernel
