"""Loss by position: how well a checkpoint uses its context, and what becomes of that by a longer one.

Computed layer by layer in FP32 on this CPU (``forward.py``), from the checkpoint's tensors alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from colosseum.checkpoint.adapters import MergedTensors
from colosseum.checkpoint.folders import read_metadata
from colosseum.checkpoint.forward import logits
from colosseum.checkpoint.hf.origin import origin_of
from colosseum.checkpoint.torchdist import Tensors, read_index
from colosseum.data.indexed import read_dataset
from colosseum.errors import Fault, RefusedInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A range of positions, from 1 on, and the mean loss of its tokens in nats."""

    first: int
    last: int
    loss: float


def sequences_of(prefix: Path, length: int, count: int) -> list[list[int]]:
    """The first ``count`` sequences of ``length + 1`` tokens of an indexed dataset, one behind the other.

    Raises:
        RefusedInput: it has not so many tokens.
    """
    tokens = read_dataset(prefix).ids
    if len(tokens) < count * length + 1:
        rule = f"has {len(tokens):,} tokens; {count} sequences of {length:,} need {count * length + 1:,}"
        raise RefusedInput([Fault(path="DATA", value=str(prefix), rule=rule, where="command line")])
    return [[int(t) for t in tokens[i * length : (i + 1) * length + 1]] for i in range(count)]


def loss_by_position(checkpoint: Path, sequences: Sequence[Sequence[int]], bands: int) -> list[Band]:
    """Mean loss of each token by its position, in ``bands`` ranges of equal width.

    Raises:
        RefusedInput: the checkpoint is unfinished, its model is not known or not computed here, or a token is not in
            its vocabulary.
    """
    import torch
    from torch.nn import functional as F

    metadata = read_metadata(checkpoint)
    model = origin_of(checkpoint, metadata).model
    if (largest := max(map(max, sequences))) >= model.vocab_size:
        raise RefusedInput(f"the data hold token {largest:,} and {checkpoint} has {model.vocab_size:,}")
    tensors = MergedTensors(Tensors(read_index(checkpoint)), metadata.lora)
    total: Any = 0.0
    for sequence in sequences:
        found = logits(tensors, model, sequence[:-1])
        total = total + F.cross_entropy(found, torch.tensor(list(sequence[1:])), reduction="none").double()
    losses = total / len(sequences)
    edges = [round(i * len(losses) / bands) for i in range(bands + 1)]
    pairs = [(a, b) for a, b in pairwise(edges) if a < b]
    return [Band(first=a + 1, last=b, loss=float(losses[a:b].mean())) for a, b in pairs]
