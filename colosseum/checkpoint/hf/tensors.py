"""Joins Hugging Face tensors into megatron-core's and splits them again: rows are moved, so both ways are exact.

Legend: H hidden, N heads, G KV groups, D channels per head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from colosseum.checkpoint.hf.mapping import Part
from colosseum.recipe.schema import Model


def joined(part: Part, tensors: Sequence[Tensor], model: Model) -> Tensor:
    """The megatron-core tensor of ``part``, without the layer axis."""
    if part.how == "qkv":
        groups, d = model.query_groups, model.head_dim
        rest = tensors[0].shape[1:]  # a bias has none
        return torch.cat([t.reshape(groups, -1, d, *rest) for t in tensors], dim=1).reshape(-1, *rest)
    if part.how == "gate_up":
        return torch.cat(list(tensors))
    if part.how == "vocabulary":
        rows = model.padded_vocab(1) - model.vocab_size
        return torch.nn.functional.pad(tensors[0], (0, 0, 0, rows)) if rows else tensors[0]
    return tensors[0]


def shape_of(part: Part, model: Model) -> tuple[int, ...]:
    """The shape of the tensor that ``joined`` gives."""
    rows, rest = sum(shape[0] for shape in part.shapes), part.shapes[0][1:]
    return (model.padded_vocab(1) if part.how == "vocabulary" else rows, *rest)


def parted(part: Part, tensor: Tensor, model: Model) -> list[Tensor]:
    """The Hugging Face tensors of ``part``."""
    if part.how == "qkv":
        groups, d = model.query_groups, model.head_dim
        each = model.num_attention_heads // groups
        blocks = tensor.reshape(groups, each + 2, d, *tensor.shape[1:])
        return [b.reshape(-1, *tensor.shape[1:]) for b in blocks.split([each, 1, 1], dim=1)]
    if part.how == "gate_up":
        return list(tensor.chunk(2))
    if part.how == "vocabulary":
        return [tensor[: model.vocab_size]]
    return [tensor]
