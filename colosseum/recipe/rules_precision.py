"""Rules of precision, optimizer sharding, overlap, fusion and the device they run on."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from colosseum.recipe import derived
from colosseum.recipe.base import AUTO
from colosseum.recipe.rules_base import Facts, Finding, Rule, multiples

FP8_UNIT = 16
"""Transformer Engine: both dimensions of an FP8 GEMM operand are multiples of 16 (rows of a local operand: 8)."""


# --- FP8 ---------------------------------------------------------------------------------------------------------


def fp8_needs_tensor_cores(facts: Facts) -> Iterator[Finding]:
    """FP8 GEMMs need the tensor cores of Hopper, Ada or later."""
    recipe = facts.recipe
    if recipe.precision.fp8 != "none" and recipe.hardware.peak_flops.fp8 is None:
        yield Finding("precision.fp8", f"hardware {recipe.hardware.name} has no FP8", ("none",))


def blockwise_needs_hopper(facts: Facts) -> Iterator[Finding]:
    """Transformer Engine's GEMMs with 128 x 128 scaling blocks need compute capability 9.0."""
    hardware = facts.recipe.hardware
    capability = hardware.compute_capability
    if facts.recipe.precision.fp8 == "blockwise" and capability is not None and capability < 9.0:
        rule = f"needs compute capability 9.0, and hardware {hardware.name} has {capability:.1f}"
        yield Finding("precision.fp8", rule, ("tensorwise", "delayed", "none"))


def fp8_computes_in_bf16(facts: Facts) -> Iterator[Finding]:
    """Norms, attention and head run in BF16 also with FP8; Megatron supports FP8 with 16-bit dtypes only."""
    precision = facts.recipe.precision
    if precision.fp8 != "none" and precision.dtype == "fp32":
        yield Finding("precision.dtype", "must be bf16 with FP8", ("bf16",))


def fp8_options_need_fp8(facts: Facts) -> Iterator[Finding]:
    """megatron-core refuses FP8 weights without FP8; bf16_layers would have no effect."""
    precision = facts.recipe.precision
    if precision.fp8 != "none":
        return
    if precision.fp8_params is True:
        yield Finding("precision.fp8_params", "needs precision.fp8", (False,))
    for end in ("first", "last"):
        if getattr(precision.bf16_layers, end):
            yield Finding(f"precision.bf16_layers.{end}", "must be 0 without FP8: all layers are BF16", (0,))


def bf16_layers_fit(facts: Facts) -> Iterator[Finding]:
    """megatron-core: no BF16 layers with delayed scaling; otherwise at most one pipeline rank's layers at each end."""
    precision = facts.recipe.precision
    if precision.fp8 == "none":
        return
    most = facts.recipe.model.num_layers // (facts.pp or 1)
    for end in ("first", "last"):
        count = getattr(precision.bf16_layers, end)
        if count and precision.fp8 == "delayed":
            yield Finding(f"precision.bf16_layers.{end}", "must be 0 with delayed scaling; tensorwise allows it", (0,))
        elif count > most:
            yield Finding(f"precision.bf16_layers.{end}", f"must be at most {most}, a pipeline rank's layers", (most,))


def delayed_keeps_layernorm(facts: Facts) -> Iterator[Finding]:
    """megatron-core: delayed scaling would record the recomputed norm's maxima twice."""
    recompute = facts.recipe.recompute
    if facts.recipe.precision.fp8 != "delayed" or recompute.granularity not in ("selective", AUTO):
        return
    if "layernorm" in recompute.modules:
        rest = tuple(m for m in recompute.modules if m != "layernorm") or ("core_attn",)
        yield Finding("recompute.modules", "must not include layernorm with delayed scaling", (rest,))


def fp8_dimensions(facts: Facts) -> Iterator[Finding]:
    """GEMM dimensions of an FP8 layer are multiples of 16 on every rank."""
    recipe, tp = facts.recipe, facts.tp or 1
    if recipe.precision.fp8 == "none":
        return
    model = recipe.model
    if model.hidden_size % FP8_UNIT:
        unit = FP8_UNIT if model.kv_channels else lcm(FP8_UNIT, model.num_attention_heads)
        yield Finding("model.hidden_size", "must be a multiple of 16 in FP8", multiples(model.hidden_size, unit))
    if model.ffn % (FP8_UNIT * tp):
        tries = multiples(model.ffn, FP8_UNIT * tp)
        yield Finding("model.ffn_hidden_size", f"must be a multiple of 16 * tp = {FP8_UNIT * tp} in FP8", tries)
    wide = model.num_attention_heads * model.head_dim
    keys = model.query_groups * model.head_dim
    if wide % (FP8_UNIT * tp) or (wide + 2 * keys) % (FP8_UNIT * tp):
        rule = f"heads * kv_channels = {wide}, and {2 * keys} for keys and values, must be multiples of 16 * tp in FP8"
        yield Finding("model.kv_channels", rule, multiples(model.head_dim, FP8_UNIT))


def fp8_tokens(facts: Facts) -> Iterator[Finding]:
    """The tokens of a CP rank are a GEMM dimension too: a multiple of 16, and of 8 on each sequence-parallel rank."""
    recipe, cp, tp, mbs = facts.recipe, facts.cp, facts.tp, facts.mbs
    if recipe.precision.fp8 == "none" or cp is None or tp is None or mbs is None:
        return
    seq = recipe.batch.seq_length
    unit = FP8_UNIT * cp if cp > 1 else FP8_UNIT
    rows = derived.fp8_local_rows(recipe)
    share = rows * tp * cp if facts.sequence_parallel else 1
    tokens = seq if cp > 1 else seq * mbs
    if tokens % unit or seq * mbs % share:
        rule = f"must be a multiple of 16 * cp = {FP8_UNIT * cp} in FP8"
        if share > 1:
            rule += f", and mbs * seq_length of {rows} * tp * cp = {share} with sequence parallelism"
        yield Finding("batch.seq_length", rule, multiples(seq, lcm(unit, share)))


# --- gradients and optimizer -------------------------------------------------------------------------------------


def fp32_reduces_in_fp32(facts: Facts) -> Iterator[Finding]:
    """Main gradients of an FP32 model are FP32."""
    precision = facts.recipe.precision
    if precision.dtype == "fp32" and precision.grad_reduce_dtype == "bf16":
        yield Finding("precision.grad_reduce_dtype", "must be fp32 with dtype fp32", ("fp32", AUTO))


def bf16_moments_need_sharding(facts: Facts) -> Iterator[Finding]:
    """megatron-core's precision-aware optimizer is a distributed optimizer."""
    if facts.recipe.precision.moments_dtype == "bf16" and facts.distributed_optimizer is False:
        yield Finding("optimizer.distributed", "must be true with precision.moments_dtype bf16", (True,))


def fp8_weights_need_fp32_moments(facts: Facts) -> Iterator[Finding]:
    """Transformer Engine's Adam for FP8 weights supports FP32 moments only (multi_tensor/adam.cu)."""
    precision = facts.recipe.precision
    if precision.fp8 != "none" and precision.fp8_params is not False and precision.moments_dtype == "bf16":
        yield Finding("precision.moments_dtype", "must be fp32 with FP8 weights (precision.fp8_params)", ("fp32",))
        yield Finding("precision.fp8_params", "must be false with precision.moments_dtype bf16", (False,))


def param_gather_needs_sharding(facts: Facts) -> Iterator[Finding]:
    """Only a distributed optimizer gathers parameters; Megatron overlaps this only together with grad_reduce."""
    overlap = facts.recipe.overlap
    if overlap.param_gather is not True:
        return
    if facts.distributed_optimizer is False:
        yield Finding("overlap.param_gather", "needs the distributed optimizer", (False, AUTO))
    elif overlap.grad_reduce is False:
        yield Finding("overlap.param_gather", "needs overlap.grad_reduce", (False,))


# --- overlap and fusion ------------------------------------------------------------------------------------------


def tp_overlap_needs_sequence_parallel(facts: Facts) -> Iterator[Finding]:
    """Userbuffers overlap the collectives of sequence parallelism with tp >= 2."""
    if facts.recipe.overlap.tp_comm is not True:
        return
    if facts.tp == 1:
        yield Finding("overlap.tp_comm", "needs tensor parallelism (tp >= 2)", (False, AUTO))
    elif facts.sequence_parallel is False:
        yield Finding("overlap.tp_comm", "needs sequence parallelism", (False, AUTO))


def pipeline_sends(facts: Facts) -> Iterator[Finding]:
    """Sends are batched or overlapped, not both; megatron-core overlaps them in the interleaved schedule only.

    Megatron-LM refuses interleaving over two ranks without overlap: both directions have the same peer.
    """
    overlap, interleaved = facts.recipe.overlap, None if facts.vpp is None else facts.vpp > 1
    p2p = interleaved if overlap.p2p == AUTO else overlap.p2p
    if overlap.p2p is True and interleaved is False:
        yield Finding("overlap.p2p", "needs the interleaved schedule (vpp > 1)", (False, AUTO))
    elif overlap.batch_p2p is True and p2p is True:
        yield Finding("overlap.batch_p2p", "must be false when overlap.p2p is on (auto = vpp > 1)", (False, AUTO))
    if overlap.p2p is False and interleaved and facts.pp == 2 and facts.recipe.hardware.kind == "gpu":
        yield Finding("overlap.p2p", "must be on to interleave over two pipeline ranks", (True, AUTO))


def deferral_needs_pipeline(facts: Facts) -> Iterator[Finding]:
    """The head's weight gradients are computed in the pipeline's cooldown, with the fused accumulation kernel."""
    recipe = facts.recipe
    if not recipe.overlap.defer_embedding_wgrad_compute:
        return
    if facts.pp == 1:
        yield Finding("overlap.defer_embedding_wgrad_compute", "needs pipeline parallelism (pp > 1)", (False,))
    elif not recipe.fusion.gradient_accumulation:
        yield Finding("overlap.defer_embedding_wgrad_compute", "needs fusion.gradient_accumulation", (False,))


def deterministic_forbids_fused_loss(facts: Facts) -> Iterator[Finding]:
    """The fused cross-entropy sums in no fixed order."""
    if facts.recipe.train.deterministic and facts.recipe.fusion.cross_entropy:
        yield Finding("fusion.cross_entropy", "must be false when train.deterministic is true", (False,))


def rope_fusion_needs_rope(facts: Facts) -> Iterator[Finding]:
    """RoPE fusion without RoPE would have no effect."""
    recipe = facts.recipe
    if recipe.fusion.rope and recipe.model.position_embedding_type != "rope":
        yield Finding("fusion.rope", "needs model.position_embedding_type rope", (False,))


# --- the CPU -----------------------------------------------------------------------------------------------------


def cpu_has_no_cuda_kernels(facts: Facts) -> Iterator[Finding]:
    """Fused kernels, userbuffers, FP8 and vboost need CUDA; BF16 moments need Transformer Engine."""
    recipe = facts.recipe
    if recipe.hardware.kind != "cpu":
        return
    rule = "must be false on a CPU: it is a CUDA kernel"
    for name in ("cross_entropy", "rope", "gradient_accumulation"):
        if getattr(recipe.fusion, name):
            yield Finding(f"fusion.{name}", rule, (False,))
    if recipe.overlap.tp_comm is True:
        yield Finding("overlap.tp_comm", "must be false on a CPU: userbuffers need CUDA", (False,))
    if recipe.precision.moments_dtype == "bf16":
        yield Finding("precision.moments_dtype", "must be fp32 on a CPU: bf16 needs Transformer Engine", ("fp32",))
    if recipe.precision.fp8 != "none" and recipe.hardware.peak_flops.fp8 is not None:
        yield Finding("precision.fp8", "must be none on a CPU", ("none",))
    if recipe.resources.vboost:
        yield Finding("resources.vboost", "must be false on a CPU", (False,))


def cpu_interleaves_with_overlap(facts: Facts) -> Iterator[Finding]:
    """Over gloo the interleaved schedule with batched sends gives wrong losses without an error (measured)."""
    overlap = facts.recipe.overlap
    if facts.recipe.hardware.kind != "cpu" or (facts.vpp or 1) == 1:
        return
    if overlap.p2p is False:
        yield Finding("overlap.p2p", "must be on to interleave on a CPU: the losses are wrong otherwise", (True, AUTO))
    if overlap.batch_p2p is True and overlap.p2p is False:
        yield Finding(
            "overlap.batch_p2p", "must be false to interleave on a CPU: the losses are wrong otherwise", (False,)
        )


RULES: tuple[Rule, ...] = (
    fp8_needs_tensor_cores,
    blockwise_needs_hopper,
    fp8_computes_in_bf16,
    fp8_options_need_fp8,
    bf16_layers_fit,
    delayed_keeps_layernorm,
    fp8_dimensions,
    fp8_tokens,
    fp32_reduces_in_fp32,
    bf16_moments_need_sharding,
    fp8_weights_need_fp32_moments,
    param_gather_needs_sharding,
    tp_overlap_needs_sequence_parallel,
    pipeline_sends,
    deferral_needs_pipeline,
    deterministic_forbids_fused_loss,
    rope_fusion_needs_rope,
    cpu_has_no_cuda_kernels,
    cpu_interleaves_with_overlap,
)
