"""The reference policy's log-probabilities: computed once and stored, or by a copy of its weights at each step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region

from colosseum.atomic import replacing
from colosseum.recipe.schema import Recipe
from colosseum.runtime import device, lora, steps
from colosseum.runtime.model import unwrapped
from colosseum.runtime.stability.ladder import Event
from colosseum.runtime.tasks.aligned import AlignedSamples
from colosseum.runtime.tasks.base import Batch, Part, Samples, Setup, Sums

SIDES = ("reference_chosen", "reference_rejected")
Figures = npt.NDArray[np.float64]


def response_log_probs(losses_BS: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each response, and its number of tokens: ``[B]`` twice, over all context-parallel ranks.

    The gradient is that of this rank's tokens: megatron-core adds the ranks' up.
    """
    mask_BS = batch["loss_mask"].float()
    logp_BS = -losses_BS.float() * mask_BS
    if "response" in batch:
        logp_B, count_B = _by_response(logp_BS, batch), _by_response(mask_BS, batch)
    else:
        logp_B, count_B = logp_BS.sum(1), mask_BS.sum(1)
    if parallel_state.get_context_parallel_world_size() > 1:
        group = parallel_state.get_context_parallel_group()
        logp_B = reduce_from_tensor_model_parallel_region(logp_B, group=group)
        count_B = reduce_from_tensor_model_parallel_region(count_B, group=group)
    return logp_B, count_B


def _by_response(values_BS: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Sums of a packed row's tokens by response: ``[responses]``, all chosen before all rejected."""
    responses = 2 * len(batch["number"])
    sums = values_BS.new_zeros(responses + 1)  # the last is the padding's
    return sums.index_add(0, batch["response"].flatten(), values_BS.flatten())[:responses]


class LogProbs:
    """A task that trains nothing: writes the log-probabilities of every sample's two sides into ``found``."""

    names: tuple[str, ...] = ()

    def __init__(self, found: dict[str, Figures]) -> None:
        self._found = found

    def prepare(self, setup: Setup) -> None: ...

    def samples(self, part: Part, size: int) -> Samples:
        raise AssertionError("it is given samples")

    def sample_order(self) -> str:
        raise AssertionError("it keeps no position")

    def before_batches(self, model: list[Any], samples: Samples, first: int) -> None: ...

    def sums(self, losses_BS: torch.Tensor, batch: Batch) -> Sums:
        logp_B, count_B = response_log_probs(losses_BS, batch)
        numbers = batch["number"].cpu().numpy()
        for name, side in zip(SIDES, logp_B.double().cpu().numpy().reshape(2, len(numbers)), strict=True):
            self._found[name][numbers] = side
        return Sums(loss=logp_B.sum(), count=count_B.sum().int(), more={})

    def metrics(self, totals: dict[str, float]) -> dict[str, float]:
        return {}

    def notice(self, metrics: dict[str, float]) -> Event | None:
        return None


def empty(samples: int) -> dict[str, Figures]:
    return {name: np.full(samples, -np.inf) for name in SIDES}


def compute(recipe: Recipe, model: list[Any], samples: AlignedSamples) -> dict[str, Figures]:
    """Log-probabilities of every sample of the file under the model's weights, on all ranks."""
    found = empty(len(samples.data))
    task = LogProbs(found)
    with _evaluating(recipe, model):
        for first in range(0, len(samples.data), recipe.batch.gbs):
            steps.forward_backward(recipe, task, model, samples, first, forward_only=True, clock=steps.Clock())
    for name, values in found.items():
        # Only last stages computed, each replica its part: the others hold minus infinity.
        shared = torch.from_numpy(values).to(device.current())
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        found[name] = shared.cpu().numpy()
    return found


@contextmanager
def _evaluating(recipe: Recipe, model: list[Any]) -> Iterator[None]:
    was_training = model[0].training
    gathers = recipe.overlap.param_gather is True
    config = model[0].config
    gather, config.param_sync_func = config.param_sync_func, None
    for chunk in model:
        chunk.eval()
        if gathers:
            # A gather that a forward pass began would write old weights over those that are loaded or swapped in next.
            chunk.disable_forward_pre_hook()
    try:
        with torch.no_grad():
            yield
    finally:
        config.param_sync_func = gather
        for chunk in model:
            chunk.train(was_training)
            if gathers:
                chunk.enable_forward_pre_hook()


def stored(folder: Path, key: list[Any], make: Callable[[], dict[str, Figures]]) -> dict[str, Figures]:
    """What ``make`` computes, from ``folder`` where it is kept under the hash of ``key``; every rank calls it."""
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    path = folder / f"{digest[:32]}.npy"
    there = [path.is_file()]
    dist.broadcast_object_list(there)  # rank 0's look at a shared disk
    if not there[0]:
        found = make()
        if dist.get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                np.save(temporary, np.stack([found[name] for name in SIDES]))
        dist.barrier()
    return dict(zip(SIDES, np.load(path, allow_pickle=False), strict=True))


class Copy:
    """The reference's weights on the device or in host memory, put in the policy's place for a forward pass."""

    def __init__(self, model: list[Any], where: str) -> None:
        self._on_host = where == "host"
        self._kept = [self._copy(parameter.data) for parameter in _parameters(model)]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self._on_host:
            return tensor.clone()
        kept = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=device.is_cuda())
        return kept.copy_(tensor)

    @contextmanager
    def in_place(self, model: list[Any]) -> Iterator[None]:
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    def _swap(self, model: list[Any]) -> None:
        """Resident: pointers change places. Host: contents do, so that the device never holds both."""
        for index, parameter in enumerate(_parameters(model)):
            if not self._on_host:
                parameter.data, self._kept[index] = self._kept[index], parameter.data
                continue
            theirs = self._copy(parameter.data)
            parameter.data.copy_(self._kept[index])
            self._kept[index] = theirs


class BaseModel:
    """The reference of a model with LoRA adapters: its frozen weights, which the run began with."""

    @contextmanager
    def in_place(self, model: list[Any]) -> Iterator[None]:
        with lora.switched_off([unwrapped(chunk) for chunk in model]):
            yield


def _parameters(model: list[Any]) -> list[torch.nn.Parameter]:
    return [parameter for chunk in model for parameter in chunk.parameters()]


def fill(
    recipe: Recipe, model: list[Any], samples: Samples, first: int, copy: Copy | BaseModel, found: dict[str, Figures]
) -> None:
    """Computes the reference's log-probabilities of one step's samples into ``found``; no rank needs another's."""
    with _evaluating(recipe, model), copy.in_place(model):
        task = LogProbs(found)
        steps.forward_backward(recipe, task, model, samples, first, forward_only=True, clock=steps.Clock())
