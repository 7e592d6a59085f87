"""The device that a rank computes on: all that differs between CUDA and CPU, in one place.

megatron-core names CUDA on its whole path (device strings, streams, RNG, tensor type names). ``prepare`` points those
names at the CPU where there is no GPU, and changes nothing where there is one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

_CPU = torch.device("cpu")
_FACTORIES = (
    *("arange", "as_tensor", "empty", "empty_like", "full", "full_like", "ones", "ones_like"),
    *("rand", "randint", "randn", "tensor", "zeros", "zeros_like"),
)
Mark = Any
"""A point in the device's time: seconds on a CPU, a recorded event on a GPU."""


def is_cuda() -> bool:
    return bool(torch.cuda.is_available())


def backend() -> str:
    """Of torch.distributed."""
    return "nccl" if is_cuda() else "gloo"


def current() -> torch.device:
    """Where this rank's tensors live."""
    return torch.device("cuda", torch.cuda.current_device()) if is_cuda() else _CPU


def name() -> str:
    return torch.cuda.get_device_name() if is_cuda() else "cpu"


def compile_nothing_on_cpu() -> None:
    """Before megatron-core is imported: it has small functions compiled (torch.compile), for GPUs.

    On a CPU the compiler's import and work take seconds in every rank, a C++ compiler must be there, and no step is
    faster.
    """
    if not is_cuda():
        torch.compile = _uncompiled


def _uncompiled(function: Any = None, **_: Any) -> Any:
    """As a decorator with arguments or without."""
    return _uncompiled if function is None else function


@functools.cache
def prepare(local_rank: int, local_ranks: int) -> None:
    """Takes this rank's device; once a process, before megatron-core builds anything."""
    if is_cuda():
        torch.cuda.set_device(local_rank)
        return
    torch.set_num_threads(cpu_threads(local_ranks))
    _redirect_cuda()
    _redirect_rng()


def cpu_threads(local_ranks: int) -> int:
    """Threads of one rank: OMP_NUM_THREADS where it is set, else the cores of this process, shared by the ranks."""
    if (said := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        return max(1, int(said))
    return max(1, len(os.sched_getaffinity(0)) // local_ranks)


def wall_s() -> float:
    """A clock that only goes forward."""
    return time.perf_counter()


def mark() -> Mark:
    """Now, in the device's time; costs no synchronisation."""
    if not is_cuda():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(start: Mark, end: Mark) -> float:
    """Device time between two marks; waits for the second."""
    if not is_cuda():
        return float(end - start)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def peak_memory_bytes() -> int:
    """The most memory this process had so far: of the GPU's allocator, or resident."""
    if is_cuda():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def to_device(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies to the GPU without waiting; on a CPU the batch itself."""
    if not is_cuda():
        return batch
    return {name: tensor.pin_memory().cuda(non_blocking=True) for name, tensor in batch.items()}


# --- megatron-core on a CPU ---------------------------------------------------------------------------------------


class _NoStream:
    """A CPU has one stream: it is always in order."""

    def wait_stream(self, *_: Any) -> None: ...

    def wait_event(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...


@contextlib.contextmanager
def _no_stream_context(*_: Any) -> Iterator[None]:
    yield


def _redirect_cuda() -> None:
    cuda, tensor = torch.cuda, torch.Tensor
    cuda.current_device = lambda: _CPU  # megatron-core uses it as device=torch.cuda.current_device()
    cuda.synchronize = lambda *a, **k: None
    cuda.empty_cache = lambda: None
    cuda.Stream = cuda.current_stream = cuda.default_stream = lambda *a, **k: _NoStream()
    cuda.stream = _no_stream_context
    cuda.nvtx.range_push = lambda *a: 0
    cuda.nvtx.range_pop = lambda *a: 0
    # Wrapped one by one and not through a TorchFunctionMode: autograd drops the mode, and recomputation runs there.
    for factory in _FACTORIES:
        setattr(torch, factory, _on_cpu(getattr(torch, factory)))
    tensor.cuda = lambda self, *a, **k: self
    tensor.type = _cuda_type_name(tensor.type)


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = _CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return on_cpu


def _cuda_type_name(method: Callable[..., Any]) -> Callable[..., Any]:
    """``Tensor.type()`` as megatron-core's optimizer compares it: torch.cuda.FloatTensor."""

    @functools.wraps(method)
    def type_name(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is not None:
            return method(self, dtype, *args, **kwargs)
        return method(self).replace("torch.", "torch.cuda.", 1)

    return type_name


def _redirect_rng() -> None:
    """The CPU's generator stands for the GPU's in megatron-core's RNG tracker."""
    import megatron.core.tensor_parallel.random as rng

    torch.cuda.manual_seed = torch.manual_seed
    torch.cuda.get_rng_state = lambda *a, **k: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *a, **k: torch.set_rng_state(state)
    rng._get_cuda_rng_state = lambda *a, **k: torch.get_rng_state()
    rng._set_cuda_rng_state = lambda state, *a, **k: torch.set_rng_state(state)
    quiet = logging.getLogger(rng.__name__)
    quiet.addFilter(lambda record: "CPU RNG state changed" not in record.getMessage())
