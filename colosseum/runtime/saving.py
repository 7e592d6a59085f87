"""Writes torch_dist checkpoints of the whole training state: by all ranks, readable under any layout."""

from __future__ import annotations

import errno
import os
import queue
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata as packages
from inspect import signature
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from torch.distributed.checkpoint.api import CheckpointException

from colosseum.checkpoint import folders
from colosseum.checkpoint.metadata import CheckpointMetadata, ModelShape
from colosseum.recipe.hash import recipe_hash
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, checkpoint_folder
from colosseum.runtime import device, optimizer
from colosseum.runtime.state import CONTENT, State, Training, layout_of, model_state, rng_state

FULL_BYTES = 1 << 20
"""A disk with less room is full."""
PACKAGES = ("colosseum", "megatron-core", "torch", "transformer-engine")


# From 0.18 on the default is a package of NVIDIA's that few sites have.
_OWN_ASYNC = {"async_strategy": "mcore"} if "async_strategy" in signature(dist_checkpointing.save).parameters else {}


def _gather_weights(training: Training) -> None:
    """With ``overlap.param_gather`` a step's new weights reach the other ranks in the next forward pass: not yet."""
    if training.recipe.overlap.param_gather is True:
        for chunk in training.model:
            chunk.start_param_sync(force_sync=True)


class Saver:
    """Writes checkpoints of one run; an asynchronous one is committed by a later call of ``finish``."""

    def __init__(self, run: RunDir, attempt: int, recipe: Recipe) -> None:
        self._run, self._attempt, self._recipe = run, attempt, recipe
        self._async = AsyncCallsQueue() if recipe.checkpoint.async_save else None
        self.last_saved_step: int | None = None
        self.done: list[tuple[int, float, int]] = []
        """Saves committed and not yet reported: step, seconds, bytes."""
        # Without async the writers are threads of this process: a plain queue does, and spares a manager process of
        # 2 to 3 s. Processes that write need the manager, which megatron-core makes where there is no queue.
        filesystem_async._results_queue = queue.Queue() if self._async is None else None

    def save(self, training: Training, state: State) -> None:
        """Saves the state after ``state.step``; every rank calls it.

        Raises:
            OSError: the disk is full or not writable; what was committed before stays.
        """
        self.finish(blocking=True)
        _gather_weights(training)
        start, step = device.wall_s(), state.step
        folder = checkpoint_folder(self._run.checkpoints, step)
        if dist.get_rank() == 0:
            folder = folders.prepare_step(self._run.checkpoints, step, self._attempt)
        dist.barrier()
        weights = model_state(training)
        contents = {
            **weights,
            "optimizer": training.optimizer.sharded_state_dict(weights, metadata=dict(CONTENT)),
            "schedule": training.schedule.state_dict(),
            "rng": rng_state(),
        }
        strategy = get_default_save_sharded_strategy()
        if parallel_state.get_data_parallel_world_size(with_context_parallel=True) > 1:
            group = parallel_state.get_data_parallel_group(with_context_parallel=True)
            strategy = FullyParallelSaveStrategyWrapper(strategy, group)
        metadata = self._metadata(training, state)
        with _plain_errors(folder):
            request = dist_checkpointing.save(
                contents,
                str(folder),
                strategy,
                async_sharded_save=self._async is not None,
                content_metadata=dict(CONTENT),
                **_OWN_ASYNC,
            )
        if self._async is None:
            self._commit(step, metadata, start)
            return
        request.add_finalize_fn(lambda: self._commit(step, metadata, start))
        self._async.schedule_async_request(request)

    def finish(self, *, blocking: bool) -> None:
        """Commits the asynchronous save under way if all ranks have written it; every rank calls it."""
        if self._async is not None:
            with _plain_errors(self._run.checkpoints):
                self._async.maybe_finalize_async_calls(blocking=blocking)

    def _commit(self, step: int, metadata: CheckpointMetadata, start: float) -> None:
        folder = checkpoint_folder(self._run.checkpoints, step)
        mine = folders.checksums(folder, sorted(p.name for p in folder.glob(f"__{dist.get_rank()}_*.distcp")))
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        files = {name: found for rank in everyone for name, found in rank.items()}
        taken = device.wall_s() - start
        if dist.get_rank() == 0:
            common = (p.name for p in folder.iterdir() if p.is_file() and p.name not in files)
            files |= folders.checksums(folder, sorted(common))
            complete = metadata.model_copy(update={"files": files, "save_time_s": round(taken, 3)})
            folders.commit(self._run.checkpoints, step, complete)
            keep = self._recipe.checkpoint
            folders.prune(self._run.checkpoints, keep.keep_last, keep.keep_every)
        dist.barrier()
        self.last_saved_step = step
        self.done.append((step, taken, sum(found.bytes for found in files.values())))

    def _metadata(self, training: Training, state: State) -> CheckpointMetadata:
        recipe = training.recipe
        return CheckpointMetadata(
            step=state.step,
            consumed_samples=state.consumed_samples,
            consumed_tokens=state.consumed_tokens,
            layout=layout_of(recipe),
            model=ModelShape.of(recipe),
            dtype=recipe.precision.dtype,
            fp8=recipe.precision.fp8,
            sharded_optimizer=optimizer.is_sharded(recipe),
            lora=recipe.lora,
            tokens_by_source=dict(state.tokens_by_source),
            sample_order=training.task.sample_order(),
            history=state.memory.history(),
            recipe_hash=recipe_hash(recipe),
            run_id=self._run.root.name,
            versions=_versions(),
            save_time_s=0.0,
            files={},
        )


@contextmanager
def _plain_errors(folder: Path) -> Iterator[None]:
    """torch's CheckpointException is no Exception, and hides why a file could not be written."""
    try:
        yield
    except CheckpointException as error:
        full = shutil.disk_usage(folder).free < FULL_BYTES
        code = errno.ENOSPC if full else errno.EIO
        raise OSError(code, f"{os.strerror(code)} (rank {', '.join(map(str, error.failures))})", str(folder)) from error


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = packages.version(name)
        except packages.PackageNotFoundError:
            continue
    return found
