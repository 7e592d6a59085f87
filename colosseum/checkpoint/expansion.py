"""Checks of a grown checkpoint: number of parameters, logits, new layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from colosseum.checkpoint.expand import expand, model_of
from colosseum.checkpoint.folders import read_metadata
from colosseum.checkpoint.forward import logits
from colosseum.checkpoint.growth import Init, Moments, growth
from colosseum.checkpoint.torchdist import Tensors, read_index
from colosseum.recipe.schema import Model

TABLES = ("embedding.word_embeddings.weight", "output_layer.weight")
PROBE = 32
"""Tokens of the probe text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """A grown checkpoint compared with the one it was made from."""

    checkpoint: Path
    layers: tuple[int, int]
    """Before and after."""
    new_layers: list[int]
    """Counted from 1."""
    parameters: tuple[int, int]
    init: Init
    optimizer: Moments
    largest_logit_difference: float | None
    """In FP32; None = not computed."""


def grow(source: Path, out: Path, layers: int, at: str, init: Init, moments: Moments, *, probe: bool) -> Grown:
    """Writes the checkpoint of a deeper model (see ``expand`` and ``growth``) and compares it with its source.

    Args:
        probe: compute the logits of both.
    """
    shape = read_metadata(source).model
    plan = growth(shape.num_layers, layers, at, init, moments)
    folder = expand(source, out, plan)
    before, after = (parameters(read_index(f).shapes, shape.vocab_size) for f in (source, folder))
    model = model_of(shape) if probe else None
    return Grown(
        checkpoint=folder,
        layers=(shape.num_layers, layers),
        new_layers=[layer + 1 for layer in plan.new_layers],
        parameters=(before, after),
        init=init,
        optimizer=moments,
        largest_logit_difference=None if model is None else largest_difference(source, folder, model, layers),
    )


def parameters(shapes: Mapping[str, tuple[int, ...]], vocab_size: int) -> int:
    """Parameters of a model by its tensors' shapes; without the padding rows of the vocabulary."""
    total = 0
    for name, shape in shapes.items():
        if not name.startswith(("optimizer", "chained_")):
            total += prod((min(shape[0], vocab_size), *shape[1:]) if name in TABLES else shape)
    return total


def largest_difference(before: Path, after: Path, model: Model, layers: int) -> float:
    """The largest difference of any logit of two checkpoints on a probe text, in FP32.

    Args:
        model: the model of ``before``; ``after`` has ``layers`` layers.
    """
    tokens = [(17 * i + 3) % model.vocab_size for i in range(PROBE)]
    deeper = model.model_copy(update={"num_layers": layers})
    old = logits(Tensors(read_index(before)), model, tokens)
    new: Any = logits(Tensors(read_index(after)), deeper, tokens)
    return float((old - new).abs().max())
