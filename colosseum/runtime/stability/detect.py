"""What a loss curve does not say by itself: spikes, gradients that are not finite, parameters that get none."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

WINDOW = 50
ENOUGH = 20
RECENT = 5
SIGMAS = 8.0
SMALLEST_SPIKE = 0.25
"""nats; a smooth curve has a deviation so small that 8 of it would be noise. Both figures are ours."""
MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for normally distributed values."""


NORM_FACTOR = 10.0
"""A gradient norm this many times the median of the last ones is a spike; ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A value far above those before it."""

    expected: float
    """Median of the last few steps."""
    limit: float


def loss_spike(losses: Sequence[float], loss: float) -> Spike | None:
    """The spike that a (finite) loss is after those of the steps before it, if it is one.

    Differences, not values, measure the noise: early on the curve falls by more than it shakes.
    """
    if len(losses) < ENOUGH:
        return None
    differences = [b - a for a, b in itertools.pairwise(losses)]
    middle = statistics.median(differences)
    sigma = MAD_TO_SIGMA * statistics.median(abs(d - middle) for d in differences)
    expected = statistics.median(losses[-RECENT:])
    limit = expected + max(SIGMAS * sigma, SMALLEST_SPIKE)
    return Spike(expected=expected, limit=limit) if loss > limit else None


def norm_spike(norms: Sequence[float], norm: float) -> Spike | None:
    """The same of a gradient norm."""
    if len(norms) < ENOUGH:
        return None
    expected = statistics.median(norms)
    limit = NORM_FACTOR * expected
    return Spike(expected=expected, limit=limit) if norm > limit else None


def gradients(chunks: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and main gradient of every trained parameter on this rank; layers are numbered over the whole model.

    Args:
        chunks: model chunks of this rank, wrapped in megatron-core's DistributedDataParallel.
    """
    for chunk in chunks:
        numbers = {
            name: module.layer_number - 1 for name, module in chunk.named_modules() if hasattr(module, "layer_number")
        }
        for name, parameter in chunk.named_parameters():
            if parameter.requires_grad and (gradient := getattr(parameter, "main_grad", None)) is not None:
                yield _global_name(name, numbers), gradient


def _global_name(name: str, layer_numbers: dict[str, int]) -> str:
    """``module.decoder.layers.0.mlp.…`` of a later pipeline stage → ``decoder.layers.48.mlp.…``."""
    for prefix, number in layer_numbers.items():
        if name.startswith(prefix + ".") and prefix.rpartition(".")[2].isdigit():
            name = f"{prefix.rpartition('.')[0]}.{number}{name.removeprefix(prefix)}"
            break
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def nonfinite_gradients(chunks: Sequence[Any]) -> list[str]:
    """Parameters of this rank whose gradient holds a NaN or an infinity."""
    return [name for name, gradient in gradients(chunks) if not bool(torch.isfinite(gradient).all())]


def dead_gradients(chunks: Sequence[Any], group: Any) -> list[str]:
    """Parameters of this rank's model part whose gradient is zero on every data-parallel rank.

    Args:
        group: the ranks that hold the same parameters (data and context parallel); all of them must call.
    """
    # As long as an adapter's B is zero, and it is at first, its A has no gradient.
    named = [(name, gradient) for name, gradient in gradients(chunks) if not name.endswith("_lora.a")]
    if not named:
        return []
    largest = torch.stack([gradient.abs().max().float() for _, gradient in named])
    torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX, group=group)
    return [name for (name, _), value in zip(named, largest.tolist(), strict=True) if value == 0.0]
