"""A checkpoint's tensors, seen in forward and backward passes over some text: in one process, without FP8."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from colosseum.runtime.fp8.casting import Numbers


def scan(checkpoint: Path, sequences: Sequence[Sequence[int]]) -> dict[str, Numbers]:
    """What ``observed`` found; each sequence is a batch of its own.

    Args:
        sequences: token ids, of ``length + 1`` tokens each.

    Raises:
        RefusedInput: the checkpoint is damaged, or of a model that is not computed here.
    """
    warnings.filterwarnings("ignore")  # of libraries, about themselves, as they are imported
    from colosseum.runtime import device
    from colosseum.runtime.fp8.observing import observed
    from colosseum.runtime.generation.engine import leave, weights_loaded
    from colosseum.runtime.parallel import RankInfo

    device.compile_nothing_on_cpu()
    try:
        training = weights_loaded(
            checkpoint, 1, 1, dist.HashStore(), RankInfo(rank=0, ranks=1, local_rank=0, local_ranks=1)
        )
        (chunk,) = training.model
        chunk.eval()  # no dropout
        with observed([chunk]) as found:
            for sequence in sequences:
                ids = torch.tensor([list(sequence)], device=device.current())
                positions = torch.arange(ids.size(1) - 1, device=device.current())[None]
                losses_BS = chunk(ids[:, :-1], positions, None, labels=ids[:, 1:])
                losses_BS.float().mean().backward()
                chunk.zero_grad(set_to_none=True)
        return found
    finally:
        leave()
