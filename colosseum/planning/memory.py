"""Bytes on a rank at the peak of a step, by pipeline stage, for any number of layouts of one job.

The peak stands at the first backward pass after the warm-up, when a rank holds all the microbatches it can have in
flight (arXiv:2104.04473, section 2.2) and the temporaries of one backward pass; or, where activations are few, in the
optimizer's step.

Legend: t tokens a rank sees in a microbatch (mbs s / cp), h hidden, f FFN, a heads, g KV groups, d head dimension,
P parameters of a rank, n = dp cp.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from colosseum.planning.constants import Constants
from colosseum.planning.flops import Array
from colosseum.planning.job import Job, Layouts
from colosseum.planning.plan import StageMemory

LOGITS_FUSED, LOGITS_PLAIN = 4.0, 14.0
"""Bytes a logit at the loss: BF16 and its gradient; plain also FP32 logits, exponentials and gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """One pipeline rank of every layout; arrays over layouts."""

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array
    logits: Array
    workspace: Array

    @property
    def allocated(self) -> Array:
        """What ``torch.cuda.max_memory_allocated`` reports."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.workspace


def layer_activations(job: Job, lay: Layouts) -> Array:
    """Bytes one layer keeps for the backward pass of one microbatch.

    t/tp (8h + 4ad + 4gd + 4f): two norms' inputs and outputs, q and the attention output, k and v, both sides of the
    activation (6f when gated); 4ta/tp softmax statistics; arXiv:2205.05198, equation 4, with flash attention in place
    of the scores and without dropout masks. Measured on an H200 for one tensor-parallel share of a Nemotron-4-340B
    layer: 268 MB in BF16 and 220 MB in FP8, where the inputs of the GEMMs are kept in FP8.
    """
    shape, tp = job.shape, lay.tp
    t = lay.mbs * job.sequences * job.seq_length / lay.cp
    rows = np.where(lay.sequence_parallel > 0, t / tp, t)
    ad, gd = shape.heads * shape.head_dim / tp, np.maximum(shape.groups / tp, 1.0) * shape.head_dim
    f = shape.ffn / tp
    norms, mlp_out, mlp_in = 8.0 * shape.hidden * rows, 2.0 * f * t, (4.0 if shape.gated else 2.0) * f * t
    attention = t * (ad + gd) * (6.0 if shape.qk_norm else 4.0)  # a norm of queries and keys keeps its inputs
    if job.is_fp8:
        # FP8 copies replace the norms' outputs and the activation's; delayed scaling keeps one of the attention's too.
        norms, mlp_out = norms - 2.0 * shape.hidden * rows, mlp_out / 2.0
        attention = attention + (t * ad if job.fp8 == "delayed" else 0.0)
    if job.dtype_bytes == 4:
        norms, mlp_out, attention, mlp_in = 2.0 * norms, 2.0 * mlp_out, 2.0 * attention, 2.0 * mlp_in
    statistics = 4.0 * t * shape.heads / tp + 16.0 * rows
    dropout = 2.0 * shape.hidden * rows if shape.hidden_dropout else 0.0
    kept = norms + mlp_in + mlp_out + attention + statistics + dropout
    selective = np.zeros_like(kept)
    if job.mlp_recompute:
        # With the output of the norm before it, which Transformer Engine computes in the first GEMM's module.
        selective = selective + mlp_in + mlp_out + (1.0 if job.is_fp8 else float(job.dtype_bytes)) * shape.hidden * rows
    return np.asarray(kept - np.where(lay.recompute == 1, selective, 0.0))


def chunk_input(job: Job, lay: Layouts) -> Array:
    """Bytes of one layer's input: all that full recomputation keeps."""
    t = lay.mbs * job.sequences * job.seq_length / lay.cp
    rows = np.where(lay.sequence_parallel > 0, t / lay.tp, t)
    return np.asarray(rows * job.shape.hidden * float(job.dtype_bytes))


def in_flight(lay: Layouts, stage: Any, layers: Array) -> Array:
    """Layers times microbatches whose activations stage ``stage`` holds at the peak.

    1F1B holds pp - i microbatches; interleaved, 2 (pp - i - 1) + (vpp - 1) pp + 1 chunks of layers / vpp each
    (Megatron-LM, schedules.py: num_warmup_microbatches, and the one that runs).
    """
    plain = np.minimum(lay.pp - stage, lay.microbatches)
    chunks = np.minimum(2.0 * (lay.pp - stage - 1) + (lay.vpp - 1) * lay.pp + 1, lay.microbatches * lay.vpp)
    return np.asarray(layers * np.where(lay.vpp > 1, chunks / lay.vpp, plain))


def stage_bytes(job: Job, lay: Layouts, c: Constants, stage: Any) -> StageBytes:
    """Bytes of pipeline rank ``stage`` (a number, or an array of one number a layout) at its fullest moment."""
    backward, update = backward_bytes(job, lay, c, stage), update_bytes(job, lay, c, stage)
    later = update.allocated > backward.allocated
    return StageBytes(
        **{f.name: np.where(later, getattr(update, f.name), getattr(backward, f.name)) for f in fields(StageBytes)}
    )


def update_bytes(job: Job, lay: Layouts, c: Constants, stage: Any) -> StageBytes:
    """Bytes of pipeline rank ``stage`` in the optimizer's step.

    megatron-core's DistributedOptimizer copies its share of BF16 gradients to FP32 (4 bytes a parameter), and that of
    FP8 weights is quantised from another copy (2 bytes); an optimizer with BF16 moments takes gradients as they are.
    Measured on an H200: 20.0 bytes a parameter where weights, gradients and states are 16.0, and 22.0 with FP8 weights.
    """
    matmul, other = _params(job, lay, stage)
    trained = _trained(job, lay, stage)
    weights, gradients, optimizer = _states(job, lay, matmul, other, trained)
    copied = (4.0 if job.moments_bytes == 4.0 else 0.0) * (lay.grad_bytes < 4.0) * trained
    copied = copied + (2.0 if job.fp8_params else 0.0) * matmul
    none = np.zeros_like(weights)
    return StageBytes(
        weights=weights + _reference_weights(job, matmul + other),
        gradients=gradients,
        optimizer=optimizer,
        activations=none,
        logits=none,
        workspace=copied / _shards(lay) + _weight_scratch(job, lay) + c.memory_offset_bytes,
    )


def _place(lay: Layouts, stage: Any) -> tuple[Any, Any, Array]:
    """Whether pipeline rank ``stage`` is the first, and the last; its layers."""
    stage = np.broadcast_to(np.asarray(stage, dtype=np.float64), lay.pp.shape)
    is_first, is_last = stage == 0, stage == lay.pp - 1
    return is_first, is_last, np.where(is_first, lay.first, np.where(is_last, lay.last, lay.middle))


def _params(job: Job, lay: Layouts, stage: Any) -> tuple[Array, Array]:
    """Parameters of pipeline rank ``stage``: those of the layers' GEMMs, and all others."""
    shape, tp = job.shape, lay.tp
    is_first, is_last, layers = _place(lay, stage)
    table = shape.padded_vocab(tp) * shape.hidden / tp
    both = is_first & is_last & (not shape.tied)
    tables = table * (1.0 * (is_first | is_last) + both) + is_first * float(shape.learned_positions * shape.hidden)
    other = layers * shape.layer_small_params + tables + is_last * float(shape.norm_params * shape.hidden)
    return layers * shape.layer_matmul_params / tp, other


def _trained(job: Job, lay: Layouts, stage: Any) -> Array:
    """Parameters of pipeline rank ``stage`` that have gradients and optimizer states."""
    if not job.frozen:
        matmul, other = _params(job, lay, stage)
        return matmul + other
    _, _, layers = _place(lay, stage)
    return np.asarray(layers * (job.adapter_cut_params / lay.tp + job.adapter_whole_params))


def _shards(lay: Layouts) -> Array:
    """Ranks that share the optimizer's states."""
    return np.where(lay.distributed > 0, lay.dp * lay.cp, 1.0)


def _reference_weights(job: Job, params: Array) -> Array:
    """DPO's reference policy, where it stays beside the trained one; with LoRA it is the frozen model."""
    return params * (float(job.dtype_bytes) if job.reference == "resident" and not job.frozen else 0.0)


def backward_bytes(job: Job, lay: Layouts, c: Constants, stage: Any) -> StageBytes:
    """Bytes of pipeline rank ``stage`` when its first backward pass ends the warm-up."""
    shape, tp = job.shape, lay.tp
    is_first, is_last, layers = _place(lay, stage)
    t = lay.mbs * job.sequences * job.seq_length / lay.cp
    table = shape.padded_vocab(tp) * shape.hidden / tp
    matmul, other = _params(job, lay, stage)
    weights, gradients, optimizer = _states(job, lay, matmul, other, _trained(job, lay, stage))
    kept = layer_activations(job, lay)
    one_input = chunk_input(job, lay)
    full = lay.recompute == 2
    per_layer = np.where(full, lay.recomputed * one_input / lay.recompute_group + (1 - lay.recomputed) * kept, kept)
    activations = per_layer * in_flight(lay, stage, layers)
    # Embedding output, and the input of each chunk that came from another rank.
    activations = activations + one_input * np.where(is_first, np.minimum(lay.pp, lay.microbatches), 1.0)
    workspace = np.where(full, kept * lay.recompute_group, 0.0) + _temporaries(job, lay, t)
    logits = np.where(is_last, _logits(job, lay, t, table), 0.0)
    # The loss's temporaries are gone when the last layer's backward begins.
    workspace = np.where(is_last, np.maximum(workspace - logits, 0.0), workspace) + _weight_scratch(job, lay)
    return StageBytes(
        weights=weights + _reference_weights(job, matmul + other),
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        logits=logits,
        workspace=workspace + c.memory_offset_bytes,
    )


def _states(job: Job, lay: Layouts, matmul: Array, other: Array, trained: Array) -> tuple[Array, Array, Array]:
    """Weights (with FP8 copies), main gradients, and the optimizer's share: master, m and v over n ranks.

    Mixed precision keeps 2 + 4 + 12 bytes a parameter (ZeRO, arXiv:1910.02054, section 3.1, with 4-byte gradients). FP8
    GEMMs want each weight plain and transposed: 2 bytes more, or instead of the BF16 weight with FP8 parameters.
    """
    weights = float(job.dtype_bytes) * (matmul + other + (trained if job.frozen else 0.0))
    if job.is_fp8 and not job.fp8_params:
        weights = weights + 2.0 * matmul
    master = 4.0 if job.dtype_bytes == 2 else 0.0
    return weights, lay.grad_bytes * trained, (master + 2.0 * job.moments_bytes) * trained / _shards(lay)


def _logits(job: Job, lay: Layouts, t: Array, table: Array) -> Array:
    """Logits with the loss's copies, and the gradient of the output weight before it is added up."""
    vocab = job.shape.padded_vocab(lay.tp) / lay.tp
    a_logit = LOGITS_FUSED if job.fused_cross_entropy else LOGITS_PLAIN
    held = t * vocab * a_logit * job.dtype_bytes / 2.0
    # The gathered input of the output layer under sequence parallelism.
    gathered = np.where(lay.sequence_parallel > 0, t * job.shape.hidden, 0.0)
    return np.asarray(held + float(job.dtype_bytes) * (table + gathered))


def _temporaries(job: Job, lay: Layouts, t: Array) -> Array:
    """The widest moment of a layer's backward pass: gradients at both sides of the MLP's activation, gathered input."""
    f = job.shape.ffn / lay.tp
    wide = (3.0 if job.shape.gated else 2.0) * f + 2.0 * job.shape.hidden
    return t * wide * float(job.dtype_bytes)


def _weight_scratch(job: Job, lay: Layouts) -> Array:
    """Placeholder weight gradients: gradient-accumulation fusion has Transformer Engine cache one a distinct shape."""
    one = job.shape.layer_matmul_params / lay.tp
    return float(job.dtype_bytes) * one


def communicators(lay: Layouts) -> Array:
    """NCCL communicator families in use: world, tp, cp (with its dp x cp), pp (with the embedding's), dp."""
    families: Array = 1.0 + (lay.tp > 1) + 2.0 * (lay.cp > 1) + 2.0 * (lay.pp > 1) + 1.0 * (lay.dp * lay.cp > 1)
    return families


def context_bytes(job: Job, lay: Layouts, c: Constants, allocated: Array) -> Array:
    """What the device holds beyond PyTorch's allocated bytes: fragmentation, CUDA context, NCCL buffers."""
    if job.hardware.kind == "cpu":
        return np.zeros_like(allocated)
    return allocated * c.fragmentation + c.context_bytes + c.communicator_bytes * communicators(lay)


def peak(job: Job, lay: Layouts, c: Constants) -> tuple[Array, Array]:
    """Allocated and device bytes of the fullest rank of each layout.

    The first rank, the second and the last are looked at: with equal layers none between can hold more than the second.
    """
    first = stage_bytes(job, lay, c, 0.0).allocated
    last = stage_bytes(job, lay, c, lay.pp - 1).allocated
    second = np.where(lay.pp > 2, stage_bytes(job, lay, c, np.minimum(1.0, lay.pp - 1)).allocated, 0.0)
    allocated = np.maximum(np.maximum(first, last), second)
    return allocated, allocated + context_bytes(job, lay, c, allocated)


def stages(job: Job, lay: Layouts, c: Constants) -> tuple[StageMemory, ...]:
    """Every pipeline rank of one layout (``lay`` has one row)."""
    found = []
    for stage in range(int(lay.pp[0])):
        part = stage_bytes(job, lay, c, float(stage))
        context = context_bytes(job, lay, c, part.allocated)
        found.append(
            StageMemory(
                weights_bytes=float(part.weights[0]),
                gradients_bytes=float(part.gradients[0]),
                optimizer_bytes=float(part.optimizer[0]),
                activations_bytes=float(part.activations[0]),
                logits_bytes=float(part.logits[0]),
                workspace_bytes=float(part.workspace[0]),
                context_bytes=float(context[0]),
                total_bytes=float((part.allocated + context)[0]),
            )
        )
    return tuple(found)
