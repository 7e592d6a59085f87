"""A Recipe -> megatron-core's GPTModel, as the chunks of it that this rank holds."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.activations import squared_relu
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import set_defaults_if_not_set_tensor_model_parallel_attributes
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

from colosseum.recipe.schema import Model, Recipe
from colosseum.runtime import device, lora

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
ACTIVATIONS = {"squared_relu": squared_relu, "gelu": F.gelu, "silu": F.silu}


def transformer_config(recipe: Recipe, *, trains: bool = True) -> Any:
    """megatron-core's configuration of a resolved recipe (no ``auto`` left).

    Args:
        trains: False = the model generates with a KV cache.
    """
    model, dtype = recipe.model, DTYPES[recipe.precision.dtype]
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.query_groups,
        ffn_hidden_size=model.ffn,
        kv_channels=model.head_dim,
        activation_func=ACTIVATIONS[model.activation_func],
        gated_linear_unit=model.gated_linear_unit,
        normalization=model.normalization,
        layernorm_zero_centered_gamma=model.layernorm_zero_centered_gamma,
        layernorm_epsilon=model.layernorm_epsilon,
        add_bias_linear=model.add_bias_linear,
        add_qkv_bias=model.add_qkv_bias,
        qk_layernorm=model.qk_layernorm,
        hidden_dropout=model.hidden_dropout,
        attention_dropout=model.attention_dropout,
        init_method_std=model.init_method_std,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        autocast_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        calculate_per_token_loss=True,
        deterministic_mode=recipe.train.deterministic and device.is_cuda(),
        **_layout(recipe),
        **_recompute(recipe),
        **_kernels(recipe, trains=trains),
        **_fp8(recipe),
    )


YARN = {
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
    "yarn_mscale": None,
    "yarn_mscale_all_dim": None,
    "yarn_correction_range_round_to_int": True,
}
"""Constants of arXiv:2309.00071; without the two scales, the attention factor is 0.1 ln(factor) + 1."""


def _rope(config: Any, model: Model) -> dict[str, Any]:
    """GPTModel's words for RoPE; YaRN's constants go to the configuration, where it looks for them."""
    words: dict[str, Any] = {"position_embedding_type": model.position_embedding_type}
    if model.rope_scaling is None:
        return words
    if model.rope_scaling_type == "linear":
        return {**words, "seq_len_interpolation_factor": model.rope_scaling}
    if model.rope_scaling_type == "llama3":
        return {**words, "rope_scaling": True, "rope_scaling_factor": model.rope_scaling}
    values = {**YARN, "yarn_rotary_scaling_factor": model.rope_scaling}
    values["yarn_original_max_position_embeddings"] = model.original_max_position_embeddings
    for name, value in values.items():
        setattr(config, name, value)
    return {"position_embedding_type": "yarn"}


def _layout(recipe: Recipe) -> dict[str, Any]:
    par, overlap = recipe.parallelism, recipe.overlap
    interleaved = int(par.vpp) > 1
    return {
        "tensor_model_parallel_size": int(par.tp),
        "pipeline_model_parallel_size": int(par.pp),
        "virtual_pipeline_model_parallel_size": int(par.vpp) if interleaved else None,
        "context_parallel_size": int(par.cp),
        "sequence_parallel": bool(par.sequence_parallel),
        "num_layers_in_first_pipeline_stage": par.first_stage_layers,
        "num_layers_in_last_pipeline_stage": par.last_stage_layers,
        "account_for_embedding_in_pipeline_split": bool(par.account_for_embedding_in_pipeline_split),
        "account_for_loss_in_pipeline_split": bool(par.account_for_loss_in_pipeline_split),
        "microbatch_group_size_per_vp_stage": par.microbatch_group_size_per_vp_stage,
        "overlap_p2p_comm": bool(overlap.p2p),
        "batch_p2p_comm": bool(overlap.batch_p2p),
        # Over gloo the interleaved schedule sends what it has freed already: wrong losses without an error.
        "deallocate_pipeline_outputs": int(par.pp) > 1 and (device.is_cuda() or not interleaved),
        "tp_comm_overlap": bool(overlap.tp_comm),
        "defer_embedding_wgrad_compute": overlap.defer_embedding_wgrad_compute,
        "wgrad_deferral_limit": overlap.wgrad_deferral_limit,
    }


def _recompute(recipe: Recipe) -> dict[str, Any]:
    rec = recipe.recompute
    if rec.granularity == "none":
        return {}
    if rec.granularity == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": list(rec.modules)}
    return {
        "recompute_granularity": "full",
        "recompute_method": rec.method,
        "recompute_num_layers": rec.num_layers,
    }


def _kernels(recipe: Recipe, *, trains: bool) -> dict[str, Any]:
    """Fused kernels are CUDA's; on a CPU weights are drawn whole and cut, so that they do not depend on tp."""
    cuda, fusion = device.is_cuda(), recipe.fusion
    return {
        "use_cpu_initialization": not cuda,
        "perform_initialization": True,
        "gradient_accumulation_fusion": cuda and fusion.gradient_accumulation,
        "cross_entropy_loss_fusion": cuda and fusion.cross_entropy,
        "cross_entropy_fusion_impl": "te" if cuda and fusion.cross_entropy else "native",
        "apply_rope_fusion": cuda and fusion.rope,
        "fused_single_qkv_rope": cuda and fusion.rope and trains and _ropes_qkv_at_once(recipe),
        "masked_softmax_fusion": cuda,
        "bias_dropout_fusion": cuda,
        "bias_activation_fusion": cuda and recipe.model.is_swiglu,
        "persist_layer_norm": cuda,
    }


def _ropes_qkv_at_once(recipe: Recipe) -> bool:
    """Whether one kernel may split and rotate Q, K and V: megatron-core asserts rows of one sequence and no QK norm."""
    model = recipe.model
    return model.position_embedding_type == "rope" and not model.qk_layernorm and recipe.alignment is None


def _fp8(recipe: Recipe) -> dict[str, Any]:
    precision = recipe.precision
    if precision.fp8 == "none":
        return {}
    first, last = precision.bf16_layers.first, precision.bf16_layers.last
    return {
        "fp8": precision.fp8_format,
        "fp8_recipe": precision.fp8,
        "fp8_param": precision.fp8_params,
        "fp8_wgrad": precision.fp8_wgrad,
        "fp8_margin": precision.fp8_margin,
        "fp8_interval": precision.fp8_interval,
        "fp8_amax_history_len": precision.fp8_amax_history_len,
        "fp8_amax_compute_algo": precision.fp8_amax_compute_algo,
        "first_last_layers_bf16": bool(first or last),
        "num_layers_at_start_in_bf16": first,
        "num_layers_at_end_in_bf16": last,
    }


def build(recipe: Recipe, *, trains: bool = True) -> tuple[Any, list[Any]]:
    """The configuration and this rank's model chunks (vpp of them), on the device, in the recipe's dtype."""
    config = transformer_config(recipe, trains=trains)
    vpp = int(recipe.parallelism.vpp)
    chunks = [_chunk(recipe, config, stage if vpp > 1 else None) for stage in range(vpp)]
    for chunk in chunks:
        for parameter in chunk.parameters():
            set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    return config, chunks


def _chunk(recipe: Recipe, config: Any, vp_stage: int | None) -> Any:
    model, seq_length = recipe.model, recipe.batch.seq_length
    where = {"ignore_virtual": vp_stage is None, "vp_stage": vp_stage}
    gpt = GPTModel(
        config=config,
        transformer_layer_spec=_layers(config, vp_stage),
        vocab_size=model.padded_vocab(int(recipe.parallelism.tp)),
        max_sequence_length=model.max_position_embeddings or seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(**where),
        post_process=parallel_state.is_pipeline_last_stage(**where),
        parallel_output=True,
        share_embeddings_and_output_weights=model.tied_embeddings,
        rotary_percent=model.rotary_percent,
        rotary_base=model.rope_base,
        vp_stage=vp_stage,
        **_rope(config, model),
    )
    if device.is_cuda():
        gpt.cuda()
    _leave_padding_out(gpt, model.vocab_size)
    if recipe.lora is not None:
        lora.attach(gpt, recipe.lora, recipe.train.seed)
    return Float16Module(config, gpt) if recipe.precision.dtype == "bf16" else gpt


class _NoPadding(torch.autograd.Function):  # type: ignore[misc]
    """Logits whose columns from ``real`` on are the lowest number there is, in place.

    They are 0 in any softmax, so the gradient that comes back for them is 0 already: nothing to do, no copy.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, real: int) -> torch.Tensor:
        logits[..., real:] = torch.finfo(logits.dtype).min
        ctx.mark_dirty(logits)
        return logits

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def _leave_padding_out(gpt: Any, vocab_size: int) -> None:
    """Rows that only fill the vocabulary up are zero, and no token: their number, which depends on tp, changes nothing.

    Loss, log-probabilities and generation all read the output layer, so their logits are set there.
    """
    rank = int(parallel_state.get_tensor_model_parallel_rank())

    def real_rows(rows: int) -> int:
        return min(max(vocab_size - rank * rows, 0), rows)

    tables = [gpt.embedding.word_embeddings] if gpt.pre_process else []
    tables += [gpt.output_layer] if gpt.post_process else []
    for table in tables:
        if table.weight is not None:
            with torch.no_grad():
                table.weight[real_rows(table.weight.size(0)) :] = 0
    if gpt.post_process:

        def hook(_: Any, __: Any, output: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
            logits, bias = output
            gathered = logits.size(-1) > gpt.output_layer.output_size_per_partition  # to generate
            real = min(vocab_size, logits.size(-1)) if gathered else real_rows(logits.size(-1))
            return (logits if real == logits.size(-1) else _NoPadding.apply(logits, real)), bias

        gpt.output_layer.register_forward_hook(hook)


def _layers(config: Any, vp_stage: int | None) -> Any:
    """Transformer Engine's layers on a GPU, megatron-core's own with our norm and attention on a CPU."""
    if not device.is_cuda():
        from colosseum.runtime.layers_cpu import block_spec

        return block_spec(config, vp_stage)
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    options = {"vp_stage": vp_stage} if "vp_stage" in inspect.signature(get_gpt_decoder_block_spec).parameters else {}
    return get_gpt_decoder_block_spec(config, use_transformer_engine=True, **options)


def unwrapped(chunk: Any) -> Any:
    """The GPTModel inside DistributedDataParallel and Float16Module: the one whose names checkpoints use."""
    while not isinstance(chunk, GPTModel):
        chunk = chunk.module
    return chunk
