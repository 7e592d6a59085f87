"""Transformer layers for the CPU: megatron-core's own, with the two parts exchanged that it has for CUDA only.

Parameter names are those of the Transformer Engine layers, so one checkpoint serves both.
Legend: S sequence (of this CP rank), B batch, N heads, G KV heads, D channels of a head, C context-parallel ranks.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from torch import Tensor

from colosseum.runtime.parallel import zigzag_positions


class Norm(torch.nn.Module):  # type: ignore[misc]
    """LayerNorm or RMSNorm with layernorm1p and the mark that sequence parallelism needs."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.offset = 1.0 if config.layernorm_zero_centered_gamma else 0.0
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.full((hidden_size,), 1.0 - self.offset, dtype=config.params_dtype))
        self.bias = None
        if config.normalization == "LayerNorm":
            self.bias = torch.nn.Parameter(torch.zeros(hidden_size, dtype=config.params_dtype))
        for parameter in self.parameters():
            # Each TP rank saw its part of the sequence: megatron-core adds the gradients up where it sees this mark.
            parameter.sequence_parallel = config.sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + self.offset if self.offset else self.weight
        if self.bias is None:
            return F.rms_norm(x, weight.shape, weight, self.eps)
        return F.layer_norm(x, weight.shape, weight, self.bias, self.eps)


class Attention(DotProductAttention):  # type: ignore[misc]
    """Causal attention by PyTorch's SDPA; under context parallelism keys and values of all ranks are gathered."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        alone = copy.copy(config)
        alone.context_parallel_size = 1  # the parent refuses more
        super().__init__(alone, *args, **kwargs)
        self.config = config

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: Any = None, **__: Any
    ) -> Tensor:
        """As ``_attend``; of a packed row (``[T, N, D]``, no batch) each sequence by itself."""
        if packed_seq_params is None:
            return self._attend(query, key, value)
        ranks = parallel_state.get_context_parallel_world_size()
        lengths = (packed_seq_params.cu_seqlens_q.diff() // ranks).tolist()
        parts = zip(*(t.unsqueeze(1).split(lengths) for t in (query, key, value)), strict=True)
        return torch.cat([self._attend(*part) for part in parts]).squeeze(1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """``[S, B, N, D]``, ``[S, B, G, D]`` twice → ``[S, B, N * D]``; one query sees all keys (generation)."""
        length = query.size(0)
        mask = None
        if (ranks := parallel_state.get_context_parallel_world_size()) > 1:
            group, rank = parallel_state.get_context_parallel_group(), parallel_state.get_context_parallel_rank()
            key = gather_from_sequence_parallel_region(key, group=group)
            value = gather_from_sequence_parallel_region(value, group=group)
            positions_S = zigzag_positions(length, rank, ranks)
            positions_CS = torch.cat([zigzag_positions(length, r, ranks) for r in range(ranks)])
            mask = positions_CS[None, :] <= positions_S[:, None]
        query_BNSD, key_BGSD, value_BGSD = (t.permute(1, 2, 0, 3) for t in (query, key, value))
        context_BNSD = F.scaled_dot_product_attention(
            query_BNSD,
            key_BGSD,
            value_BGSD,
            attn_mask=mask,
            is_causal=mask is None and length > 1,
            dropout_p=self.attention_dropout.p if self.training else 0.0,
            scale=self.softmax_scale,
            enable_gqa=key.size(2) != query.size(2),
        )
        return context_BNSD.permute(2, 0, 1, 3).reshape(length, query.size(1), -1)


def block_spec(config: Any, vp_stage: int | None) -> TransformerBlockSubmodules:
    """The layers of this rank's model chunk and the final norm."""
    layer = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization=config.normalization)
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = Norm
    attention = parts.self_attention.submodules
    attention.core_attention = Attention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = Norm
    count = get_num_layers_to_build(config, vp_stage=vp_stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * count, layer_norm=Norm)
