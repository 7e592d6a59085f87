"""What a checkpoint holds of a run: counters, and the state of model, optimizer and random generators, sharded."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject

from colosseum.checkpoint.metadata import Layout
from colosseum.recipe.schema import Recipe
from colosseum.runtime import parallel
from colosseum.runtime.model import unwrapped
from colosseum.runtime.stability.ladder import Memory
from colosseum.runtime.tasks.base import Samples, Task

CONTENT = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}
"""megatron-core's format whose optimizer state any layout can read."""


@dataclass(slots=True)
class State:
    """What one step passes to the next, besides tensors."""

    step: int = 0
    consumed_samples: int = 0
    """Position in the sample order."""
    consumed_tokens: int = 0
    """Over the whole lineage."""
    tokens_by_source: dict[str, int] = field(default_factory=dict)
    """The same by source, up to ``counted_samples``."""
    counted_samples: int = 0
    memory: Memory = field(default_factory=Memory)

    def advance(self, samples: int, tokens: int) -> None:
        """One step more."""
        self.step += 1
        self.consumed_samples += samples
        self.consumed_tokens += tokens

    def count(self, samples: Samples) -> None:
        """Brings ``tokens_by_source`` up to date."""
        counts = samples.tokens_by_source(self.counted_samples, self.consumed_samples)
        for source, tokens in counts.items():
            self.tokens_by_source[source] = self.tokens_by_source.get(source, 0) + tokens
        self.counted_samples = self.consumed_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The objects whose state is saved."""

    recipe: Recipe
    task: Task
    model: list[Any]
    optimizer: Any
    """None in a model that only generates; so is the schedule."""
    schedule: Any
    clip: Any = None
    """Called with the norm of ready gradients: scales them to ``optimizer.clip_grad``. None as the optimizer."""


def layout_of(recipe: Recipe) -> Layout:
    par = recipe.parallelism
    return Layout(tp=int(par.tp), pp=int(par.pp), vpp=int(par.vpp), cp=int(par.cp), dp=parallel.dp_size())


# --- state dictionaries ------------------------------------------------------------------------------------------


def model_key(index: int, count: int) -> str:
    """Under which a model chunk's state stands, of ``count`` that a rank holds."""
    return "model" if count == 1 else f"model{index}"


def model_state(training: Training) -> dict[str, Any]:
    """The sharded state of this rank's model chunks."""
    chunks = training.model
    return {
        model_key(i, len(chunks)): unwrapped(chunk).sharded_state_dict(metadata=dict(CONTENT))
        for i, chunk in enumerate(chunks)
    }


def rng_state() -> ShardedObject:
    """Generators of this rank; data- and context-parallel ranks of a model part have the same."""
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(),
        "tracker": tensor_parallel.get_cuda_rng_tracker().get_states(),
    }
    ps = parallel_state
    return ShardedObject(
        "rng_state",
        state,
        (ps.get_pipeline_model_parallel_world_size(), ps.get_tensor_model_parallel_world_size()),
        (ps.get_pipeline_model_parallel_rank(), ps.get_tensor_model_parallel_rank()),
        replica_id=parallel_state.get_data_parallel_rank(with_context_parallel=True),
    )


def restore_rng(state: dict[str, Any]) -> None:
    """Sets the generators as they were when ``rng_state`` was saved."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state(state["device"])
    tensor_parallel.get_cuda_rng_tracker().set_states(state["tracker"])
