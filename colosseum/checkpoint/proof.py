"""What a grown checkpoint is held against: its number of parameters, its logits, its new layers."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from colosseum.checkpoint.forward import logits
from colosseum.checkpoint.torchdist import Tensors, read_index
from colosseum.recipe.schema import Model

TABLES = ("embedding.word_embeddings.weight", "output_layer.weight")
PROBE = 32
"""Tokens of the probe text."""


def parameters(shapes: Mapping[str, tuple[int, ...]], vocab_size: int) -> int:
    """Parameters of a model by its tensors' shapes; rows that only fill the vocabulary up do not count."""
    total = 0
    for name, shape in shapes.items():
        if not name.startswith(("optimizer", "chained_")):
            total += prod((min(shape[0], vocab_size), *shape[1:]) if name in TABLES else shape)
    return total


def largest_difference(before: Path, after: Path, model: Model, layers: int) -> float:
    """The largest difference of any logit of two checkpoints on a probe text, in FP32.

    Args:
        model: that of ``before``; ``after`` has ``layers`` layers.
    """
    tokens = [(17 * i + 3) % model.vocab_size for i in range(PROBE)]
    deeper = model.model_copy(update={"num_layers": layers})
    old = logits(Tensors(read_index(before)), model, tokens)
    new: Any = logits(Tensors(read_index(after)), deeper, tokens)
    return float((old - new).abs().max())
