"""This process among all ranks: its rank, the process groups, the random seeds."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from colosseum.recipe.schema import Recipe
from colosseum.runtime import device

PIPELINE_SEED_STEP = 100
"""Megatron's: stages draw their weights from seeds this far apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """Rank and world size of this process, globally and on its node."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int

    @classmethod
    def from_env(cls) -> RankInfo:
        """From torchrun's variables, which the launchers of this package set too; alone if there are none."""
        env = os.environ
        return cls(
            rank=int(env.get("RANK", "0")),
            ranks=int(env.get("WORLD_SIZE", "1")),
            local_rank=int(env.get("LOCAL_RANK", "0")),
            local_ranks=int(env.get("LOCAL_WORLD_SIZE", "1")),
        )


def start(recipe: Recipe, rank_info: RankInfo, timeout_s: float) -> None:
    """Takes the device, joins all ranks, forms the groups of the recipe's layout and seeds the generators."""
    device.prepare(rank_info.local_rank, rank_info.local_ranks)
    if not dist.is_initialized():
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        options: dict[str, Any] = {"device_id": device.current()} if device.is_cuda() else {}
        dist.init_process_group(
            device.backend(),
            rank=rank_info.rank,
            world_size=rank_info.ranks,
            timeout=timedelta(seconds=timeout_s),
            **options,
        )
    form_groups(recipe)
    seed(recipe)


def form_groups(recipe: Recipe) -> None:
    """megatron-core's process groups of the recipe's layout."""
    par = recipe.parallelism
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=int(par.tp),
        pipeline_model_parallel_size=int(par.pp),
        virtual_pipeline_model_parallel_size=int(par.vpp) if int(par.vpp) > 1 else None,
        context_parallel_size=int(par.cp),
    )


def seed(recipe: Recipe) -> None:
    """Seeds as Megatron does: alike on the ranks of a stage, with a tracker that parts the tensor-parallel ones."""
    value = recipe.train.seed + PIPELINE_SEED_STEP * parallel_state.get_pipeline_model_parallel_rank()
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)
    tensor_parallel.model_parallel_cuda_manual_seed(value)
    if recipe.train.deterministic and device.is_cuda():
        torch.use_deterministic_algorithms(True)


def is_first_stage() -> bool:
    return bool(parallel_state.is_pipeline_first_stage(ignore_virtual=True))


def is_last_stage() -> bool:
    return bool(parallel_state.is_pipeline_last_stage(ignore_virtual=True))


def dp_size() -> int:
    return int(parallel_state.get_data_parallel_world_size())


def dp_rank() -> int:
    return int(parallel_state.get_data_parallel_rank())


def zigzag_positions(length: int, rank: int, ranks: int) -> torch.Tensor:
    """Positions ``[S]`` in the whole sequence of a CP rank's part: chunks ``rank`` and ``2C - 1 - rank`` of 2C.

    Megatron's split: every rank gets equal work under a causal mask.
    """
    half = length // 2
    return torch.cat([torch.arange(half) + chunk * half for chunk in (rank, 2 * ranks - 1 - rank)])
