"""torch_dist checkpoints of the whole training state, written by all ranks and readable under any layout."""

from __future__ import annotations

import errno
import os
import pickle
import queue
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata as packages
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.serialization import (
    get_default_load_sharded_strategy,
    get_default_save_sharded_strategy,
)
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelLoadStrategyWrapper,
    FullyParallelSaveStrategyWrapper,
)
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException

from colosseum.checkpoint import folders
from colosseum.checkpoint.metadata import CheckpointMetadata, Layout, ModelShape
from colosseum.errors import RefusedInput
from colosseum.recipe.hash import recipe_hash
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, checkpoint_folder
from colosseum.runtime import device, optimizer, parallel, reading
from colosseum.runtime.failures import ConfigFailure, causes_of
from colosseum.runtime.model import unwrapped
from colosseum.runtime.tasks.base import Samples, Task

CONTENT = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}
"""megatron-core's format whose optimizer state any layout can read."""
PICKLED_SCALES = "NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"
"""Transformer Engine's own switch."""
GO_BACK = "go on from an earlier step with --from RUN@STEP"
FULL_BYTES = 1 << 20
"""A disk with less room is full."""
PACKAGES = ("colosseum", "megatron-core", "torch", "transformer-engine")


# From 0.18 on the default is a package of NVIDIA's that few sites have.
_OWN_ASYNC = {"async_strategy": "mcore"} if "async_strategy" in signature(dist_checkpointing.save).parameters else {}


@dataclass(slots=True)
class State:
    """What goes on from step to step, besides tensors."""

    step: int = 0
    consumed_samples: int = 0
    """Position in the sample order."""
    consumed_tokens: int = 0
    """Over the whole lineage."""
    tokens_by_source: dict[str, int] = field(default_factory=dict)
    """The same by source, up to ``counted_samples``."""
    counted_samples: int = 0

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
    schedule: Any


def layout_of(recipe: Recipe) -> Layout:
    par = recipe.parallelism
    return Layout(tp=int(par.tp), pp=int(par.pp), vpp=int(par.vpp), cp=int(par.cp), dp=parallel.dp_size())


# --- state dictionaries ------------------------------------------------------------------------------------------


def _model_key(index: int, count: int) -> str:
    return "model" if count == 1 else f"model{index}"


def _model_state(training: Training) -> dict[str, Any]:
    chunks = training.model
    return {
        _model_key(i, len(chunks)): unwrapped(chunk).sharded_state_dict(metadata=dict(CONTENT))
        for i, chunk in enumerate(chunks)
    }


def _rng_state() -> ShardedObject:
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


def _restore_rng(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state(state["device"])
    tensor_parallel.get_cuda_rng_tracker().set_states(state["tracker"])


# --- saving ------------------------------------------------------------------------------------------------------


class Saver:
    """Writes checkpoints of one run; an asynchronous one is committed by a later call of ``finish``."""

    def __init__(self, run: RunDir, attempt: int, recipe: Recipe) -> None:
        self._run, self._attempt, self._recipe = run, attempt, recipe
        self._async = AsyncCallsQueue() if recipe.checkpoint.async_save else None
        self.last_saved_step = folders.newest_committed(run.checkpoints)
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
        start, step = device.wall_s(), state.step
        folder = checkpoint_folder(self._run.checkpoints, step)
        if dist.get_rank() == 0:
            folder = folders.prepare_step(self._run.checkpoints, step, self._attempt)
        dist.barrier()
        model_state = _model_state(training)
        contents = {
            **model_state,
            "optimizer": training.optimizer.sharded_state_dict(model_state, metadata=dict(CONTENT)),
            "schedule": training.schedule.state_dict(),
            "rng": _rng_state(),
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
            tokens_by_source=dict(state.tokens_by_source),
            sample_order=training.task.sample_order(),
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


def _causes(error: BaseException) -> list[BaseException]:
    """What it came from; torch's CheckpointException holds one of each rank, and others of its kind."""
    if not isinstance(error, CheckpointException):
        return causes_of(error)
    return [cause for failure, _ in error.failures.values() for cause in _causes(failure)]


@contextmanager
def _damage_named(folder: Path) -> Iterator[None]:
    """A file that is no longer what was written is damage: starting again would end the same way."""
    try:
        yield
    except (CheckpointException, CheckpointingException, pickle.UnpicklingError, EOFError) as error:
        causes = _causes(error)
        if refused := next((cause for cause in causes if isinstance(cause, RefusedInput)), None):
            raise ConfigFailure(str(refused)) from error
        damage = next((c for c in causes if isinstance(c, pickle.UnpicklingError | EOFError)), None)
        if damage is None:  # torch's CheckpointException is no Exception
            raise RuntimeError(f"{folder} could not be read: {causes[0]}") from causes[0]
        raise ConfigFailure(f"{folder} is damaged ({type(damage).__name__}); {GO_BACK}") from error


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = packages.version(name)
        except packages.PackageNotFoundError:
            continue
    return found


# --- loading -----------------------------------------------------------------------------------------------------


def load(training: Training, folder: Path, what: tuple[str, ...]) -> State:
    """Loads the parts named (weights, optimizer, data, rng); every rank calls it.

    Returns:
        Where to go on: the step if the optimizer was loaded, the position in the data if ``data`` was and the order of
        samples is the same.

    Raises:
        ConfigFailure: the checkpoint is of another model or not finished.
    """
    metadata = folders.read_metadata(folder)
    if different := metadata.model.differences(ModelShape.of(training.recipe)):
        raise ConfigFailure(f"{folder} is of another model: {', '.join(different)}")
    if "optimizer" in what and metadata.sharded_optimizer != optimizer.is_sharded(training.recipe):
        wanted = "true" if metadata.sharded_optimizer else "false"
        raise ConfigFailure(f"{folder} holds the states of an optimizer that is distributed: {wanted}; say so here too")
    _check_sums(folder, metadata)
    same_layout = (metadata.layout.tp, metadata.layout.pp) == _tp_pp(layout_of(training.recipe))
    contents = _model_state(training)
    if "optimizer" in what:
        optimizer.prepare_for_loading(training.optimizer)
        contents["optimizer"] = training.optimizer.sharded_state_dict(contents, is_loading=True, metadata=dict(CONTENT))
        contents["schedule"] = training.schedule.state_dict()
    if "rng" in what and same_layout:
        contents["rng"] = _rng_state()
    strategy = get_default_load_sharded_strategy(str(folder))
    if parallel_state.get_data_parallel_world_size(with_context_parallel=True) > 1:
        # One replica reads and passes on: thousands of ranks do not all read the same files.
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        strategy = FullyParallelLoadStrategyWrapper(strategy, group)
    FileSystemReader(str(folder)).read_metadata()  # refuses plainly; inside the load, torch hides why
    with _damage_named(folder):
        found = dist_checkpointing.load(contents, str(folder), strategy)
    chunks = training.model
    with _scaling_state_allowed():
        for i, chunk in enumerate(chunks):
            reading.check_scaling(found[_model_key(i, len(chunks))])
            unwrapped(chunk).load_state_dict(found[_model_key(i, len(chunks))], strict=False)
    if "optimizer" in what:
        rates = optimizer.rates(training.optimizer)
        training.optimizer.load_state_dict(found["optimizer"])
        optimizer.restore_rates(training.optimizer, rates)
        optimizer.mend_after_loading(training.optimizer)
        # It counts in samples, and a fork's steps may have more of them: the step says where the rates go on.
        position = metadata.step * training.recipe.batch.gbs
        training.schedule.load_state_dict({**found["schedule"], "num_steps": position})
    else:
        training.optimizer.reload_model_params()
    if "rng" in found:
        _restore_rng(found["rng"])
    return _state(training.task, metadata, what)


@contextmanager
def _scaling_state_allowed() -> Iterator[None]:
    """Lets Transformer Engine read what delayed scaling remembers: a pickle that `reading.check_scaling` has seen.

    Without it the scales would begin anew.
    """
    before = os.environ.get(PICKLED_SCALES)
    os.environ[PICKLED_SCALES] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PICKLED_SCALES]
        else:
            os.environ[PICKLED_SCALES] = before


def _state(task: Task, metadata: CheckpointMetadata, what: tuple[str, ...]) -> State:
    state = State(consumed_tokens=metadata.consumed_tokens, tokens_by_source=dict(metadata.tokens_by_source))
    if "optimizer" in what:
        state.step = metadata.step
    if "data" in what and metadata.sample_order == task.sample_order():
        state.consumed_samples = state.counted_samples = metadata.consumed_samples
    return state


def _check_sums(folder: Path, metadata: CheckpointMetadata) -> None:
    """Every file is what was written; the ranks share the reading, and what they read is in the cache for the load.

    Raises:
        ConfigFailure: a file was changed since.
    """
    mine = sorted(metadata.files)[dist.get_rank() :: dist.get_world_size()]
    changed = [name for name, found in folders.checksums(folder, mine).items() if found != metadata.files[name]]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, changed)
    if names := sorted(name for part in everyone for name in part):
        raise ConfigFailure(f"{folder} is damaged: {', '.join(names[:3])} changed since it was written; {GO_BACK}")


def _tp_pp(layout: Layout) -> tuple[int, int]:
    return layout.tp, layout.pp
