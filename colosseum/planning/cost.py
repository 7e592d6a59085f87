"""Step time of any number of layouts of one job, as named parts. Seconds of one step; FLOPs and bytes of one rank.

Legend: t tokens a rank sees in a microbatch (mbs s / cp), h hidden, f FFN, a heads, g KV groups, d head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from colosseum.planning import hardware as links
from colosseum.planning.constants import Constants
from colosseum.planning.flops import Array
from colosseum.planning.job import Job, Layouts

TILE_M, TILE_N = 128, 256
"""Output tile of the Hopper GEMM kernels that cuBLAS picks for large shapes."""
KERNEL_S = 3e-6
"""Launch and tail of one kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Where the time of a step goes; every field an array over layouts, adding up to ``total_s``."""

    gemm_s: Array
    attention_s: Array
    memory_bound_s: Array
    """Norms, activations, residuals, FP8 casts, launch gaps."""
    recompute_s: Array
    head_s: Array
    """Embedding, logits and loss of the rank that has them."""
    tp_s: Array
    cp_s: Array
    pp_bubble_s: Array
    pp_imbalance_s: Array
    """Waiting for the slowest pipeline rank."""
    p2p_s: Array
    dp_s: Array
    optimizer_s: Array
    reference_s: Array
    """DPO: the reference policy's log-probs, where they are computed in the step."""
    jitter_s: Array
    """Growth with the number of GPUs, and the site factor."""

    @property
    def total_s(self) -> Array:
        total: Array = np.sum([getattr(self, f.name) for f in fields(self)], axis=0)
        return total

    def parts(self, row: int) -> dict[str, float]:
        """One layout's parts by name, without the unit."""
        return {f.name.removesuffix("_s"): float(getattr(self, f.name)[row]) for f in fields(self)}


def gemm_time(
    m: Any, n: Any, k: Any, c: Constants, peak: float, sms: int, hbm: float, *, fp8: bool = False, rows: Any = None
) -> Array:
    """Seconds of C[m,n] = A[m,k] B[k,n], computed in kernels of ``rows`` tokens (all at once by default).

    2mnk over the sustained rate, times (1 + k0/k) for prologue and epilogue and (1 + m0/rows) for the tail, times
    half-strength wave quantisation (stream-K and split-K soften the other half), floored by memory traffic (roofline:
    Williams et al. 2009).
    """
    m, n, k = np.asarray(m, dtype=np.float64), np.asarray(n, dtype=np.float64), np.asarray(k, dtype=np.float64)
    rate = peak * (c.gemm_efficiency_fp8 if fp8 else c.gemm_efficiency_bf16)
    waves = np.ceil(m / TILE_M) * np.ceil(n / TILE_N) / sms
    quantised = 0.5 + 0.5 * np.ceil(waves - 1e-9) / waves
    prologue = 1.0 + (c.gemm_half_k_fp8 if fp8 else c.gemm_half_k) / k
    tail = 1.0 + c.gemm_half_m / (m if rows is None else rows)
    compute = 2.0 * m * n * k / rate * prologue * tail * quantised
    traffic = (m * k + k * n) * (1.0 if fp8 else 2.0) + 2.0 * m * n
    floor = traffic / (hbm * c.memory_efficiency)
    return np.asarray(np.maximum(compute, floor) + KERNEL_S)


def attention_time(
    sequences: Any, seq: Any, chunk: Any, heads: Any, head_dim: int, c: Constants, peak: float
) -> tuple[Array, Array]:
    """Forward and backward seconds of causal flash attention: ``sequences`` of ``seq`` tokens, ``heads`` a rank.

    4 s^2 a d forward FLOPs, halved by the causal mask; backward 2.5 times as many (FlashAttention-2,
    arXiv:2307.08691, section 4.1). ``chunk`` is the run of queries one kernel sees; short ones fill the GPU badly.
    """
    flops = 2.0 * np.asarray(sequences, dtype=np.float64) * seq * seq * heads * head_dim
    rate = peak * chunk / (chunk + c.attention_half_seq)
    common = head_dim in (64, 128)
    forward = flops / (rate * c.attention_efficiency_forward * (1.0 if common else c.attention_head_dim_factor))
    slower = 1.0 if common else c.attention_head_dim_factor_backward
    backward = 2.5 * flops / (rate * c.attention_efficiency_backward * slower)
    return forward, backward


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """One layer, one microbatch: forward (f) and backward (b) parts."""

    gemm_f: Array
    gemm_b: Array
    attention_f: Array
    attention_b: Array
    memory_f: Array
    memory_b: Array
    tp_f: Array
    tp_b: Array
    cp: Array

    @property
    def forward(self) -> Array:
        """What recomputation repeats."""
        return self.gemm_f + self.attention_f + self.memory_f + self.tp_f


def layer_time(job: Job, lay: Layouts, c: Constants) -> LayerTime:
    """Seconds of one transformer layer."""
    shape, hw = job.shape, job.hardware
    h, hd, tp = shape.hidden, shape.head_dim, lay.tp
    sequences = lay.mbs * job.sequences
    t = sequences * job.seq_length / lay.cp
    peak, sms, hbm = matmul_peak(job), hw.sms, hw.memory_bytes_per_s
    fp8 = job.is_fp8
    peak_gemm = float(hw.peak_flops.fp8 or peak) if fp8 else peak
    n_qkv = (shape.heads + 2 * np.maximum(shape.groups, tp)) * hd / tp
    n_out, n_up, k_down = shape.heads * hd / tp, shape.ffn * (2 if shape.gated else 1) / tp, shape.ffn / tp
    gemm_f, gemm_b = np.zeros_like(t), np.zeros_like(t)
    rows = np.where(lay.tp_overlap > 0, t / tp, t)
    for n, k in ((n_qkv, h), (h, n_out), (n_up, h), (h, k_down)):
        gemm_f = gemm_f + gemm_time(t, n, k, c, peak_gemm, sms, hbm, fp8=fp8, rows=rows)
        gemm_b = gemm_b + gemm_time(t, k, n, c, peak_gemm, sms, hbm, fp8=fp8, rows=rows)
        gemm_b = gemm_b + gemm_time(n, k, t, c, peak_gemm, sms, hbm, fp8=fp8, rows=rows)
    # The ring's kernels see s/cp queries, or half of them in half of its later turns.
    chunk = job.seq_length * np.where(lay.cp > 1, 0.75 / lay.cp, 1.0)
    attention_f, attention_b = attention_time(sequences / lay.cp, job.seq_length, chunk, shape.heads / tp, hd, c, peak)
    if shape.attention_dropout:
        attention_f = attention_f / c.attention_dropout_factor
        attention_b = attention_b / c.attention_dropout_factor_backward
    memory_f, memory_b = _memory_bound(job, lay, c, t, n_qkv, n_up, k_down)
    tp_f, tp_b = _tp_time(job, lay, c, t)
    cp = _cp_time(job, lay, c, t, attention_f + attention_b)
    return LayerTime(
        gemm_f=gemm_f,
        gemm_b=gemm_b,
        attention_f=attention_f,
        attention_b=attention_b,
        memory_f=memory_f,
        memory_b=memory_b,
        tp_f=tp_f,
        tp_b=tp_b,
        cp=cp,
    )


def matmul_peak(job: Job) -> float:
    """Peak FLOP/s of the training dtype."""
    return job.hardware.peak_flops.bf16 if job.dtype_bytes == 2 else job.hardware.peak_flops.fp32


def _memory_bound(
    job: Job, lay: Layouts, c: Constants, t: Array, n_qkv: Array, n_up: Array, k_down: Array
) -> tuple[Array, Array]:
    """Kernels that only move bytes: norms and residuals, the activation, RoPE, biases, dropout, FP8 casts.

    Bytes an element: a fused activation reads its input (both halves when gated) and writes its output, backward it
    reads them with the gradient and writes the input's gradient; dropout keeps a mask of one byte.
    """
    shape, tp = job.shape, lay.tp
    rows = np.where(lay.sequence_parallel > 0, t / tp, t)
    norm = rows * shape.hidden * 20.0
    act_f, act_b = (6.0, 10.0) if shape.gated else (4.0, 6.0)
    rope = 0.0 if shape.learned_positions else 4.0 * t * (shape.heads + shape.groups) * shape.head_dim / tp
    drop = 2.0 * rows * shape.hidden if shape.hidden_dropout else 0.0
    forward = c.elementwise_scale * (norm + t * k_down * act_f + rope + drop)
    backward = c.elementwise_scale * (1.6 * norm + t * k_down * act_b + rope + 5.0 * drop)
    if shape.qk_norm:
        heads = t * (shape.heads + shape.groups) * shape.head_dim / tp
        forward, backward = forward + c.elementwise_scale * 4.0 * heads, backward + c.elementwise_scale * 6.0 * heads
    if shape.qkv_bias:
        outputs = t * n_qkv + (t * n_up + 2.0 * rows * shape.hidden if shape.bias else 0.0)
        forward = forward + c.elementwise_scale * 4.0 * outputs
        if not job.is_fp8:  # FP8 casts sum the bias gradients on their way
            backward = backward + c.elementwise_scale * 2.0 * outputs
    if job.is_fp8:
        # Each GEMM input is read in BF16 and written in FP8, forward; gradients twice, plain and transposed.
        n_out = shape.heads * shape.head_dim / tp
        forward = forward + c.cast_scale * 2.0 * t * (shape.hidden + n_out + shape.hidden + k_down)
        backward = backward + c.cast_scale * 4.0 * t * (n_qkv + shape.hidden + n_up + shape.hidden)
    rate = job.hardware.memory_bytes_per_s * c.memory_efficiency
    return forward / rate + c.layer_overhead_s / 3.0, backward / rate + c.layer_overhead_s * 2.0 / 3.0


def _tp_time(job: Job, lay: Layouts, c: Constants, t: Array) -> tuple[Array, Array]:
    """Exposed tensor-parallel collectives of one layer.

    With sequence parallelism: forward 2 all-gathers and 2 reduce-scatters, backward the same and 2 all-gathers more for
    the weight gradients (arXiv:2205.05198, section 4.2.2), each moving t h (tp-1)/tp elements; without it 2 all-reduces
    each way, of the same volume. FP8 halves the all-gathers.
    """
    hw, tp = job.hardware, lay.tp
    move = t * job.shape.hidden * 2.0 * (tp - 1) / tp / links.ring_rate(hw, c, tp, 1) + np.where(
        tp > 1, links.latency(hw, c, tp), 0.0
    )
    gather = move * (0.5 if job.is_fp8 else 1.0)
    exposed = np.where(lay.tp_overlap > 0, c.tp_exposed, c.tp_exposed_serial)
    again = np.where(lay.sequence_parallel > 0, gather, 0.0)
    return exposed * (2 * gather + 2 * move), exposed * (4 * move + again)


def _cp_time(job: Job, lay: Layouts, c: Constants, t: Array, attention: Array) -> Array:
    """Exposed ring exchange of K and V (backward also their gradients): cp-1 hops under the attention they feed.

    With the kernels that put the turns' results together.
    """
    hw = job.hardware
    kv = 2.0 * t * np.maximum(job.shape.groups / lay.tp, 1.0) * job.shape.head_dim * 2.0
    hop = kv / links.link_rate(hw, c, lay.tp * lay.cp) + links.latency(hw, c, lay.tp * lay.cp)
    ring = 3.0 * (lay.cp - 1) * hop
    hidden = attention * (lay.cp - 1) / lay.cp
    # Each turn's output is rescaled into the sum (10 bytes an element), each turn's gradient of Q added up (6).
    moved = c.elementwise_scale * 16.0 * lay.cp * t * job.shape.heads * job.shape.head_dim / lay.tp
    sums = moved / (hw.memory_bytes_per_s * c.memory_efficiency)
    return np.where(lay.cp > 1, np.maximum(c.cp_exposed * ring, ring - hidden) + sums, 0.0)


def head_time(job: Job, lay: Layouts, c: Constants) -> tuple[Array, Array]:
    """Seconds of the embedding and of the output layer with its loss, forward and backward, one microbatch."""
    shape, hw = job.shape, job.hardware
    t = lay.mbs * job.sequences * job.seq_length / lay.cp
    rate = hw.memory_bytes_per_s * c.memory_efficiency
    vocab, peak = shape.padded_vocab(lay.tp) / lay.tp, matmul_peak(job)
    sizes = ((t, vocab, shape.hidden), (t, shape.hidden, vocab), (vocab, shape.hidden, t))
    gemms = sum((gemm_time(m, n, k, c, peak, hw.sms, hw.memory_bytes_per_s) for m, n, k in sizes), np.zeros_like(t))
    # Bytes a logit. Fused: read for the maximum, read and written as the gradient, scaled. Megatron's own
    # (vocab_parallel_cross_entropy): to FP32 6, maximum 4, less it 8, exponential 8, sum 4, divided 8; backward scaled
    # 8, to BF16 6.
    loss = t * vocab * (12.0 if job.fused_cross_entropy else 52.0) / rate
    return t * shape.hidden * 12.0 / rate, gemms + loss


def step_time(job: Job, lay: Layouts, c: Constants) -> StepTime:
    """Seconds of one optimizer step.

    m T_max + (sum of the ranks' T - T_max) / vpp for the 1F1B schedule (arXiv:2104.04473, section 2.2: the bubble is
    (pp-1)/m, divided by vpp when interleaved), plus pipeline sends, data-parallel collectives and the optimizer.
    """
    layer = layer_time(job, lay, c)
    embedding, head = head_time(job, lay, c)
    again = recompute_time(job, lay, layer)
    per_layer = layer.forward + layer.gemm_b + layer.attention_b + layer.memory_b + layer.tp_b + layer.cp + again
    single = lay.pp == 1
    first = lay.first * per_layer + embedding + np.where(single, head, 0.0)
    last = np.where(single, first, lay.last * per_layer + head)
    middle = lay.middle * per_layer
    slowest = np.maximum(np.maximum(first, last), middle)
    everyone = np.where(single, first, first + last + np.maximum(lay.pp - 2, 0.0) * middle)
    mean, m = everyone / lay.pp, lay.microbatches
    share = m * job.shape.layers / lay.pp
    dp, optimizer = _data_parallel(job, lay, c, slowest)
    parts = {
        "gemm_s": share * (layer.gemm_f + layer.gemm_b),
        "attention_s": share * (layer.attention_f + layer.attention_b),
        "memory_bound_s": share * (layer.memory_f + layer.memory_b),
        "recompute_s": share * again,
        "head_s": m * (embedding + head) / lay.pp,
        "tp_s": share * (layer.tp_f + layer.tp_b),
        "cp_s": share * layer.cp,
        "pp_bubble_s": (everyone - slowest) / lay.vpp,
        "pp_imbalance_s": m * (slowest - mean),
        "p2p_s": _p2p_time(job, lay, c),
        "dp_s": dp,
        "optimizer_s": optimizer,
        "reference_s": _reference_time(job, lay, layer, embedding, head),
    }
    total = np.sum(list(parts.values()), axis=0)
    doublings = np.maximum(0.0, np.log2(job.gpus / 64.0))
    factor = (1.0 + (c.jitter_fp8 if job.is_fp8 else c.jitter_bf16) * doublings) * c.site_factor
    return StepTime(**parts, jitter_s=total * (factor - 1.0))


def _reference_time(job: Job, lay: Layouts, layer: LayerTime, embedding: Array, head: Array) -> Array:
    """A forward pass of all microbatches through the pipeline; a reference in host memory is swapped in and out.

    NeMo-Aligner copies the policy's weights out, the reference's in and the policy's back: three times over PCIe.
    """
    if job.reference not in ("resident", "host"):
        return np.zeros_like(lay.tp)
    forward, single = layer.forward + layer.cp / 3.0, lay.pp == 1
    first = lay.first * forward + embedding / 3.0 + np.where(single, head / 3.0, 0.0)
    last = np.where(single, first, lay.last * forward + head / 3.0)
    slowest = np.maximum(np.maximum(first, last), lay.middle * forward)
    swaps = 3.0 * rank_params(job, lay) * job.dtype_bytes / job.hardware.pcie_bytes_per_s
    return np.asarray((lay.microbatches + lay.pp - 1.0) * slowest + (swaps if job.reference == "host" else 0.0))


def recompute_time(job: Job, lay: Layouts, layer: LayerTime) -> Array:
    """Forward work repeated in the backward pass, a layer."""
    full = np.where(lay.recompute == 2, lay.recomputed * layer.forward, 0.0)
    selective = np.zeros_like(full)
    if job.mlp_recompute:
        share = job.shape.layer_mlp_params / job.shape.layer_matmul_params
        selective = selective + share * (layer.gemm_f + layer.memory_f + layer.tp_f)
    if job.attention_recompute:
        selective = selective + layer.attention_f + layer.cp / 3.0
    return full + np.where(lay.recompute == 1, selective, 0.0)


def _p2p_time(job: Job, lay: Layouts, c: Constants) -> Array:
    """Pipeline sends: all exposed while the pipeline fills and drains, a share of them in the steady phase.

    Each turn of a rank, a chunk forward or backward, also costs launches and the wait for its neighbours.
    """
    hw = job.hardware
    t = lay.mbs * job.sequences * job.seq_length / lay.cp
    rows = np.where(lay.sequence_parallel > 0, t / lay.tp, t)
    span = lay.tp * lay.cp * lay.dp * lay.pp
    send = rows * job.shape.hidden * 2.0 / links.link_rate(hw, c, span) + links.latency(hw, c, span)
    steady = np.where(lay.p2p_overlap > 0, c.p2p_exposed, 1.0) * lay.microbatches * lay.vpp
    turns = 2.0 * lay.microbatches * lay.vpp * c.turn_overhead_s
    return np.where(lay.pp > 1, 2.0 * send * (lay.pp - 1 + steady) + turns, 0.0)


def rank_params(job: Job, lay: Layouts) -> Array:
    """Parameters of the heaviest pipeline rank, a tensor-parallel share."""
    shape = job.shape
    table = shape.padded_vocab(lay.tp) * shape.hidden
    one = lay.pp == 1
    layers = np.maximum(np.maximum(lay.first, lay.last), lay.middle)
    ends = np.maximum(lay.first, lay.last) * shape.layer_matmul_params + table
    tables = table * (1.0 if shape.tied else 2.0)
    whole = shape.layers * shape.layer_matmul_params + tables
    return np.asarray(np.where(one, whole, np.maximum(layers * shape.layer_matmul_params, ends)) / lay.tp)


def _data_parallel(job: Job, lay: Layouts, c: Constants, microbatch: Array) -> tuple[Array, Array]:
    """Exposed gradient reduce-scatter and parameter all-gather, and the optimizer's pass over its states.

    Ring collectives move (n-1)/n of the bytes (ZeRO, arXiv:1910.02054). Overlapped, the buckets of the last layers
    computed and the first needed still stand outside; the rest runs under the last backward and the first forward pass,
    two thirds and one third of ``microbatch`` seconds, and takes a share of the GPU from them.
    """
    hw, n = job.hardware, lay.dp * lay.cp
    params = rank_params(job, lay)
    rate = links.ring_rate(hw, c, lay.tp * n, lay.tp)
    ring = (n - 1) / n / rate
    reduce = params * lay.grad_bytes * ring
    gather = params * (1.0 if job.fp8_params else float(job.dtype_bytes)) * ring
    outside = np.where(lay.pp == 1, 1.0 / job.shape.layers, 0.5 / lay.vpp)
    share = outside + c.dp_exposed * (1.0 - outside)
    under_reduce = np.maximum(share * reduce, reduce - microbatch * 2.0 / 3.0)
    under_gather = np.maximum(share * gather, gather - microbatch / 3.0)
    dp = np.where(lay.grad_overlap > 0, under_reduce, reduce) + np.where(lay.param_overlap > 0, under_gather, gather)
    shards = np.where(lay.distributed > 0, n, 1.0)
    # Adam reads gradient, master, m, v and writes the last three and the parameter. Before, every rank scales all its
    # gradients by 1 / dp, after it clears them (megatron-core's param_and_grad_buffer.py).
    states = params / shards * (8.0 + 4.0 * job.moments_bytes + lay.grad_bytes + 2.0) + 3.0 * lay.grad_bytes * params
    return dp, states / (hw.memory_bytes_per_s * c.memory_efficiency) + c.step_overhead_s
