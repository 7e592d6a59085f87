"""Kernels of this device by shape: ``python -m colosseum.runtime.measure OUT.json [KIND …]``. torch only.

Kinds: gemm, attention, memory; collectives where several ranks are started (torchrun). Every figure is the median of
bursts on random data, each long enough for the device to reach its sustained clock: training is bound by power.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

MEASUREMENTS_SCHEMA = "colosseum.measurements/1"
KINDS = ("gemm", "attention", "memory", "collectives")
BURSTS = 5
SECONDS = float(os.environ.get("COLOSSEUM_MEASURE_SECONDS", "0.6"))
"""Of one measurement, all bursts together."""
ROTATED = 3
"""Operand sets used in turn, so that no result stays in cache."""

Row = dict[str, Any]


def is_cuda() -> bool:
    return bool(torch.cuda.is_available())


def time_of(work: Callable[[], object]) -> float:
    """Median seconds of one call."""
    for _ in range(3):
        work()
    once = _slowest(_burst(work, 1))
    count = max(2, int(SECONDS / BURSTS / max(once, 1e-6)))
    return statistics.median(_burst(work, count) for _ in range(BURSTS))


def _slowest(seconds: float) -> float:
    """The slowest rank's: collectives hang unless every rank makes the same number of calls."""
    if not dist.is_initialized():
        return seconds
    value = torch.tensor(seconds, device=_device(), dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return float(value.item())


def _burst(work: Callable[[], object], count: int) -> float:
    if is_cuda():
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(count):
            work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / count
    began = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - began) / count


def _device() -> torch.device:
    return torch.device("cuda" if is_cuda() else "cpu")


# --- GEMM --------------------------------------------------------------------------------------------------------

GEMM_SHAPES = (
    (8192, 8192, 8192),
    (4096, 2688, 18432),  # a TP8 rank of a 340B layer at 4K: QKV, output, MLP up and down
    (4096, 18432, 2304),
    (4096, 9216, 18432),
    (4096, 18432, 9216),
    (16384, 9216, 18432),
    (8192, 16384, 4096),  # a 7B layer
    (8192, 6144, 4096),
    (8192, 4096, 4096),
    (8192, 4096, 16384),
    (8192, 8192, 1024),  # short K: prologue and epilogue
    (8192, 8192, 2048),
    (1024, 9216, 18432),  # few rows: the tail
    (512, 9216, 18432),
    (2048, 4096, 4096),
)
GEMM_SHAPES_CPU = ((256, 256, 256), (512, 256, 512), (256, 512, 128), (128, 256, 512))


def gemm() -> Iterator[Row]:
    """C[m,n] = A[m,k] B[n,k]^T in BF16, and in FP8 (E4M3, fast and split accumulation) where the device has it."""
    for m, n, k in GEMM_SHAPES if is_cuda() else GEMM_SHAPES_CPU:
        yield {"kind": "gemm", "dtype": "bf16", "m": m, "n": n, "k": k, "time_s": _gemm_bf16(m, n, k)}
        if is_cuda() and torch.cuda.get_device_capability() >= (8, 9):
            for fast in (True, False):
                row = {"kind": "gemm", "dtype": "fp8", "fast_accumulation": fast, "m": m, "n": n, "k": k}
                yield {**row, "time_s": _gemm_fp8(m, n, k, fast)}


def _operands(m: int, n: int, k: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    def random(rows: int) -> torch.Tensor:
        return torch.randn(rows, k, device=_device(), dtype=torch.bfloat16)

    return [random(m) for _ in range(ROTATED)], [random(n) for _ in range(ROTATED)]


def _gemm_bf16(m: int, n: int, k: int) -> float:
    left, right = _operands(m, n, k)
    out, turn = torch.empty(m, n, device=_device(), dtype=torch.bfloat16), [0]

    def work() -> None:
        turn[0] = (turn[0] + 1) % ROTATED
        torch.mm(left[turn[0]], right[turn[0]].t(), out=out)

    return time_of(work)


def _gemm_fp8(m: int, n: int, k: int, fast: bool) -> float:
    left, right = ([t.to(torch.float8_e4m3fn) for t in side] for side in _operands(m, n, k))
    one, turn = torch.tensor(1.0, device=_device()), [0]

    def work() -> None:
        turn[0] = (turn[0] + 1) % ROTATED
        torch._scaled_mm(
            left[turn[0]],
            right[turn[0]].t(),
            scale_a=one,
            scale_b=one,
            out_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )

    return time_of(work)


# --- attention ---------------------------------------------------------------------------------------------------

ATTENTION_SHAPES = (  # heads, KV heads, head dimension, sequence
    (16, 16, 128, 1024),
    (16, 16, 128, 2048),
    (16, 16, 128, 4096),
    (16, 16, 128, 16384),
    (32, 8, 128, 4096),
    (16, 16, 64, 4096),
    (12, 1, 192, 4096),  # a TP8 rank of the 340B
    (12, 1, 192, 16384),
)
ATTENTION_FLOPS = 1e12
"""Forward FLOPs of one call: about 2 ms on an H100."""
ATTENTION_SHAPES_CPU = ((2, 2, 64, 128), (2, 2, 64, 256), (2, 1, 192, 128))


def attention() -> Iterator[Row]:
    """Causal attention forward and backward, BF16; so many sequences that the kernel outlasts its launch."""
    for heads, groups, dim, seq in ATTENTION_SHAPES if is_cuda() else ATTENTION_SHAPES_CPU:
        count = math.ceil(ATTENTION_FLOPS / (2 * heads * dim * seq * seq)) if is_cuda() else 1
        forward_s, backward_s = _attention(count, heads, groups, dim, seq)
        row = {"kind": "attention", "heads": heads, "groups": groups, "head_dim": dim, "seq_length": seq}
        row["sequences"] = count
        yield {**row, "forward_s": forward_s, "backward_s": backward_s}


def _attention(sequences: int, heads: int, groups: int, dim: int, seq: int) -> tuple[float, float]:
    def random(count: int) -> torch.Tensor:
        return torch.randn(seq, sequences, count, dim, device=_device(), dtype=torch.bfloat16, requires_grad=True)

    query, key, value = random(heads), random(groups), random(groups)
    kernel = _kernel(heads, groups, dim)

    def forward() -> torch.Tensor:
        return kernel(query, key, value)

    gradient = torch.randn_like(forward())
    forward_s = time_of(forward)
    # Together: Transformer Engine's backward pass can run only once a forward pass.
    both_s = time_of(lambda: torch.autograd.grad(forward(), (query, key, value), gradient))
    return forward_s, both_s - forward_s


def _kernel(heads: int, groups: int, dim: int) -> Callable[..., torch.Tensor]:
    """Transformer Engine's attention where it is installed, as training uses it, else PyTorch's: ``[S, B, N, D]``."""
    if is_cuda() and importlib.util.find_spec("transformer_engine"):
        from transformer_engine.pytorch.attention import DotProductAttention

        module = DotProductAttention(
            heads, dim, num_gqa_groups=groups, attention_dropout=0.0, attn_mask_type="causal", qkv_format="sbhd"
        )
        return cast("Callable[..., torch.Tensor]", module.cuda())
    backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

    def plain(*qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.permute(1, 2, 0, 3) for t in qkv)
        with sdpa_kernel(backends, set_priority=True):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups < heads)

    return plain


# --- memory and links --------------------------------------------------------------------------------------------


def memory() -> Iterator[Row]:
    """Copies and a layer norm with its backward: what kernels that only move bytes reach."""
    elements = (1 << 28) if is_cuda() else (1 << 20)
    source = torch.randn(elements, device=_device(), dtype=torch.bfloat16)
    target = torch.empty_like(source)
    yield {"kind": "copy", "bytes": 4 * elements, "time_s": time_of(lambda: target.copy_(source))}
    rows, hidden = (8192, 8192) if is_cuda() else (128, 512)
    x = torch.randn(rows, hidden, device=_device(), dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(hidden, device=_device(), dtype=torch.bfloat16, requires_grad=True)
    out = F.layer_norm(x, (hidden,), weight)
    gradient = torch.randn_like(out)
    with torch.no_grad():
        forward_s = time_of(lambda: F.layer_norm(x, (hidden,), weight))
    backward_s = time_of(lambda: torch.autograd.grad(out, (x, weight), gradient, retain_graph=True))
    yield {"kind": "norm", "rows": rows, "hidden": hidden, "forward_s": forward_s, "backward_s": backward_s}


def collectives() -> Iterator[Row]:
    """All-gather and reduce-scatter over all ranks: bytes a rank sends over the time, for large and small messages."""
    ranks = dist.get_world_size()
    for size in (1 << 26, 1 << 22, 1 << 12) if is_cuda() else (1 << 16, 1 << 10):
        part = torch.randn(size // 2, device=_device(), dtype=torch.bfloat16)
        whole = torch.empty(size // 2 * ranks, device=_device(), dtype=torch.bfloat16)
        for name, work in (
            ("all_gather", lambda w=whole, p=part: dist.all_gather_into_tensor(w, p)),
            ("reduce_scatter", lambda w=whole, p=part: dist.reduce_scatter_tensor(p, w)),
        ):
            time_s = time_of(work)
            yield {"kind": name, "ranks": ranks, "bytes": size * (ranks - 1), "time_s": time_s}


def measure(kinds: tuple[str, ...]) -> dict[str, Any]:
    """The document of all kinds asked for."""
    parts: dict[str, Callable[[], Iterator[Row]]] = {"gemm": gemm, "attention": attention, "memory": memory}
    if dist.is_initialized():
        parts["collectives"] = collectives
    rows = []
    for kind, part in parts.items():
        if kind in kinds:
            for row in part():
                rows.append(row)
                sys.stderr.write(f"{json.dumps(row)}\n")
    return {
        "schema": MEASUREMENTS_SCHEMA,
        "device": torch.cuda.get_device_name() if is_cuda() else "cpu",
        "torch": torch.__version__,
        "time_unix_s": time.time(),
        "rows": rows,
    }


def main(words: list[str]) -> int:
    target, kinds = Path(words[0]), tuple(words[1:]) or KINDS
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if is_cuda():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if is_cuda() else "gloo")
    document = measure(kinds)
    if not dist.is_initialized() or dist.get_rank() == 0:
        target.write_text(json.dumps(document, indent=1) + "\n")
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
