"""Loads checkpoints into a run under any layout; a clear message where that is not possible."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedBase
from megatron.core.dist_checkpointing.serialization import get_default_load_sharded_strategy
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelLoadStrategyWrapper
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException

from colosseum.checkpoint import folders
from colosseum.checkpoint.compare import load_faults, steps_go_on
from colosseum.checkpoint.metadata import CheckpointMetadata, Layout
from colosseum.errors import RefusedInput
from colosseum.runtime import lora, optimizer, optimizer_kinds, reading
from colosseum.runtime.failures import ConfigFailure, causes_of
from colosseum.runtime.model import unwrapped
from colosseum.runtime.stability.ladder import Memory
from colosseum.runtime.state import CONTENT, State, Training, layout_of, model_key, model_state, restore_rng, rng_state
from colosseum.runtime.tasks.base import Task

PICKLED_SCALES = "NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"
"""Transformer Engine's own switch."""


def changed_files(folder: Path, metadata: CheckpointMetadata) -> list[str]:
    """Files that are no longer what was written; every rank calls it, and they share the reading.

    What they read is in the cache for the load.
    """
    mine = sorted(metadata.files)[dist.get_rank() :: dist.get_world_size()]
    changed = [name for name, found in folders.checksums(folder, mine).items() if found != metadata.files[name]]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, changed)
    return sorted(name for part in everyone for name in part)


def load(training: Training, folder: Path, metadata: CheckpointMetadata, what: tuple[str, ...]) -> State:
    """Loads the parts named (weights, optimizer, data, rng); every rank calls it.

    Returns:
        Where to resume: the step if ``steps_go_on``, the position in the data if ``data`` was loaded and the order of
        samples is the same.

    Raises:
        ConfigFailure: the checkpoint is of another model, or does not hold what the model needs.
        RefusedInput: it holds more than data.
    """
    if faults := load_faults(training.recipe, metadata, what):
        raise ConfigFailure(f"{folder}: {'; '.join(faults)}")
    # A run that is resumed has its adapters; one that begins with these weights has them merged in.
    merged = nullcontext() if "optimizer" in what else lora.replaced(_models(training), metadata.lora)
    with merged:
        found = _read(training, folder, metadata, what)
        _take_weights(training, folder, found)
    if "optimizer" in what:
        rates = optimizer.rates(training.optimizer)
        state = found["optimizer"]
        if kinds := _other_kind(training, metadata):
            state = optimizer_kinds.as_own_kind(training.optimizer, state, **kinds)
        training.optimizer.load_state_dict(state)
        optimizer.restore_rates(training.optimizer, rates)
        optimizer.mend_after_loading(training.optimizer)
        # It counts in samples, and a fork's steps may have more of them: the schedule continues at the step.
        position = metadata.step * training.recipe.batch.gbs if steps_go_on(what) else 0
        training.schedule.load_state_dict({**found["schedule"], "num_steps": position})
    elif training.optimizer is not None:
        training.optimizer.reload_model_params()
    if "rng" in found:
        restore_rng(found["rng"])
    return _state(training.task, metadata, what)


def _read(training: Training, folder: Path, metadata: CheckpointMetadata, what: tuple[str, ...]) -> dict[str, Any]:
    contents = _wanted(training, metadata, what)
    _check_keys(folder, contents, what, _unread(training, metadata))
    strategy = get_default_load_sharded_strategy(str(folder))
    if parallel_state.get_data_parallel_world_size(with_context_parallel=True) > 1:
        # One replica reads and passes on: thousands of ranks do not all read the same files.
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        strategy = FullyParallelLoadStrategyWrapper(strategy, group)
    with _plain_errors(folder):
        return dict(dist_checkpointing.load(contents, str(folder), strategy))


def _models(training: Training) -> list[Any]:
    return [unwrapped(chunk) for chunk in training.model]


COMMON_STATE = "common_state"
"""Where megatron-core 0.19 keeps what 0.16 writes to common.pt."""


def _wanted(training: Training, metadata: CheckpointMetadata, what: tuple[str, ...]) -> dict[str, Any]:
    """The sharded state to fill."""
    contents = model_state(training)
    if "optimizer" in what:
        optimizer.prepare_for_loading(training.optimizer)
        contents["optimizer"] = training.optimizer.sharded_state_dict(contents, is_loading=True, metadata=dict(CONTENT))
        if kinds := _other_kind(training, metadata):
            optimizer_kinds.ask_other_kind(contents["optimizer"], **kinds)
        contents["schedule"] = training.schedule.state_dict()
    if "rng" in what and _tp_pp(metadata.layout) == _tp_pp(layout_of(training.recipe)):
        contents["rng"] = rng_state()
    return contents


def _other_kind(training: Training, metadata: CheckpointMetadata) -> dict[str, bool]:
    """How to read the state of the other kind of optimizer (distributed or not); empty: it is of this kind."""
    sharded = optimizer.is_sharded(training.recipe)
    if sharded == metadata.sharded_optimizer:
        return {}
    return {"to_sharded": sharded, "fp32": metadata.dtype == "fp32"}


def _unread(training: Training, metadata: CheckpointMetadata) -> tuple[str, ...]:
    """Beginnings of keys that nobody asks for, rightly: weights that the distributed optimizer holds once more."""
    kinds = _other_kind(training, metadata)
    return (optimizer_kinds.DISTRIBUTED,) if kinds and kinds["fp32"] and not kinds["to_sharded"] else ()


def _check_keys(folder: Path, contents: dict[str, Any], what: tuple[str, ...], unread: tuple[str, ...]) -> None:
    """The checkpoint holds all that is asked for, and nothing of those parts that nobody asks for but ``unread``.

    Raises:
        ConfigFailure: names some of either.
        RefusedInput: its ``.metadata`` holds more than data (inside a load, torch hides why).
    """
    stored = FileSystemReader(str(folder)).read_metadata().state_dict_metadata
    held = {name.partition("/shard_")[0] for name in stored if not name.startswith(unread)}
    mine = {value.key for value in nested_values(contents) if isinstance(value, ShardedBase)}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    wanted = set().union(*everyone)

    def matters(key: str) -> bool:
        # Transformer Engine's releases differ in where they keep FP8 memory, which is empty without delayed scaling.
        part = "optimizer" if key.startswith("optimizer.") else "rng" if key == "rng_state" else "weights"
        if key.endswith("_extra_state") or key == COMMON_STATE or part == "rng":
            return False
        return part == "weights" or part in what

    halves = [name for name, tensor in stored.items() if _dtype(tensor) is torch.int16 and name in wanted]
    if "optimizer" in what and halves:
        rule = "holds 16-bit remainders of its FP32 weights, which only its own run can load: load weights only"
        raise ConfigFailure(f"{folder} {rule} ({_some(sorted(halves))})")
    missing, unexpected = (sorted(filter(matters, keys)) for keys in (wanted - held, held - wanted))
    said = [f"{text} {_some(keys)}" for text, keys in (("lacks", missing), ("also holds", unexpected)) if keys]
    if said:
        raise ConfigFailure(f"{folder} is of another model: it {' and '.join(said)}")


def _dtype(stored: Any) -> Any:
    """Of an entry of ``.metadata``; None for objects."""
    return getattr(getattr(stored, "properties", None), "dtype", None)


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def _take_weights(training: Training, folder: Path, found: dict[str, Any]) -> None:
    chunks = training.model
    with _scaling_state_allowed():
        for i, chunk in enumerate(chunks):
            state = found[model_key(i, len(chunks))]
            reading.check_scaling(state)
            left = unwrapped(chunk).load_state_dict(state, strict=False)
            if wrong := [key for key in (*left.missing_keys, *left.unexpected_keys) if "_extra_state" not in key]:
                raise ConfigFailure(f"{folder} does not fit the model: {_some(sorted(wrong))}")


@contextmanager
def _plain_errors(folder: Path) -> Iterator[None]:
    """torch's CheckpointException is no Exception, and holds what happened to every rank."""
    try:
        yield
    except (CheckpointException, CheckpointingException, pickle.UnpicklingError, EOFError) as error:
        causes = _causes(error)
        if refused := next((cause for cause in causes if isinstance(cause, RefusedInput)), None):
            raise ConfigFailure(str(refused)) from error
        raise RuntimeError(f"{folder} could not be read: {causes[0]}") from causes[0]


def _causes(error: BaseException) -> list[BaseException]:
    """What it came from; torch's CheckpointException holds one of each rank, and others of its kind."""
    if not isinstance(error, CheckpointException):
        return causes_of(error)
    return [cause for failure, _ in error.failures.values() for cause in _causes(failure)]


@contextmanager
def _scaling_state_allowed() -> Iterator[None]:
    """Lets Transformer Engine read what delayed scaling remembers: a pickle that `reading.check_scaling` has seen.

    Without it the scales would be reset.
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
    if steps_go_on(what):
        state.step = metadata.step
        state.memory = Memory.of(metadata.history)
    if "data" in what and metadata.sample_order == task.sample_order():
        state.consumed_samples = state.counted_samples = metadata.consumed_samples
    return state


def _tp_pp(layout: Layout) -> tuple[int, int]:
    return layout.tp, layout.pp
