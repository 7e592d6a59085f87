"""A GPT's logits from the tensors of a checkpoint, layer by layer in FP32: a check that needs no engine and no GPU.

Only one layer is in memory at a time. Written from the model's definition, not from megatron-core, so that the two
can be compared.
Legend: S sequence, H hidden, F MLP width, N heads, G KV groups, D channels per head, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from colosseum.errors import RefusedInput
from colosseum.recipe.schema import LLAMA3_OLD_CONTEXT, Model


class Source(Protocol):
    """A source of tensors."""

    def get(self, key: str, layer: int | None = None) -> Any: ...
    def has(self, key: str, layer: int | None = None) -> bool: ...


def logits(source: Source, model: Model, tokens: Sequence[int]) -> Any:
    """``[S, vocab_size]`` FP32; without the padding rows of the vocabulary.

    Raises:
        RefusedInput: the model has learned positions, or a tensor is missing.
    """
    import torch

    if model.position_embedding_type != "rope":
        raise RefusedInput("logits are computed for models with RoPE only")
    with torch.no_grad():
        table = source.get("embedding.word_embeddings.weight")
        x_SH = table[torch.tensor(list(tokens))].float()
        if not model.tied_embeddings:
            del table
        cos_SD, sin_SD = _rotations(model, len(tokens))
        for layer in range(model.num_layers):
            x_SH = _layer(source, model, layer, x_SH, cos_SD, sin_SD)
        x_SH = _norm(source, model, "decoder.final_layernorm.", None, x_SH)
        out = table if model.tied_embeddings else source.get("output_layer.weight")
        return x_SH @ out[: model.vocab_size].float().T


def _norm(source: Source, model: Model, key: str, layer: int | None, x: Any) -> Any:
    from torch.nn import functional as F

    weight = source.get(f"{key}weight", layer).float() + (1.0 if model.layernorm_zero_centered_gamma else 0.0)
    if model.normalization == "RMSNorm":
        return F.rms_norm(x, weight.shape, weight, model.layernorm_epsilon)
    return F.layer_norm(x, weight.shape, weight, source.get(f"{key}bias", layer).float(), model.layernorm_epsilon)


def _linear(source: Source, key: str, layer: int, x: Any) -> Any:
    y = x @ source.get(f"{key}.weight", layer).float().T
    return y + source.get(f"{key}.bias", layer).float() if source.has(f"{key}.bias", layer) else y


def _layer(source: Source, model: Model, layer: int, x_SH: Any, cos_SD: Any, sin_SD: Any) -> Any:
    import torch
    from torch.nn import functional as F

    here = "decoder.layers."
    attend: Any = F.scaled_dot_product_attention
    groups, channels = model.query_groups, model.head_dim
    each = model.num_attention_heads // groups
    normed = _norm(source, model, f"{here}self_attention.linear_qkv.layer_norm_", layer, x_SH)
    qkv = _linear(source, f"{here}self_attention.linear_qkv", layer, normed)
    # One block of rows per KV group: its queries, its key, its value.
    qkv = qkv.view(len(x_SH), groups, each + 2, channels)
    q, k, v = qkv[:, :, :each].reshape(len(x_SH), -1, channels), qkv[:, :, each], qkv[:, :, each + 1]
    if model.qk_layernorm:
        q, k = (_norm(source, model, f"{here}self_attention.{n}_layernorm.", layer, t) for n, t in (("q", q), ("k", k)))
    q, k = (_rotated(t, cos_SD, sin_SD) for t in (q, k))
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    context = attend(q, k, v, is_causal=True, enable_gqa=each > 1)[0]
    x_SH = x_SH + _linear(source, f"{here}self_attention.linear_proj", layer, context.transpose(0, 1).flatten(1))
    normed = _norm(source, model, f"{here}mlp.linear_fc1.layer_norm_", layer, x_SH)
    wide = _linear(source, f"{here}mlp.linear_fc1", layer, normed)
    if model.gated_linear_unit:
        gate, up = torch.chunk(wide, 2, dim=-1)
        wide = _activated(model, gate) * up
    else:
        wide = _activated(model, wide)
    return x_SH + _linear(source, f"{here}mlp.linear_fc2", layer, wide)


def _activated(model: Model, x: Any) -> Any:
    from torch.nn import functional as F

    if model.activation_func == "squared_relu":
        return F.relu(x) ** 2
    return F.gelu(x) if model.activation_func == "gelu" else F.silu(x)


def _rotated(x_SND: Any, cos_SD: Any, sin_SD: Any) -> Any:
    """Rotates the first channels by their position; the rest is unchanged."""
    import torch

    turned, rest = x_SND[..., : cos_SD.size(-1)], x_SND[..., cos_SD.size(-1) :]
    first, second = turned.chunk(2, dim=-1)
    swapped = torch.cat((-second, first), dim=-1)
    return torch.cat((turned * cos_SD[:, None] + swapped * sin_SD[:, None], rest), dim=-1)


def _rotations(model: Model, length: int) -> tuple[Any, Any]:
    """Cosines and sines ``[S, D * rotary_percent]``, scaled as the model says."""
    import torch

    channels = int(model.head_dim * model.rotary_percent)
    inverse = 1.0 / model.rope_base ** (torch.arange(0, channels, 2, dtype=torch.float32) / channels)
    larger = 1.0
    if (factor := model.rope_scaling) is not None:
        kept = _unscaled_share(model, inverse)
        inverse = (1 - kept) * inverse / factor + kept * inverse
        if model.rope_scaling_type == "yarn":
            larger = 0.1 * math.log(factor) + 1.0
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * larger, angles.sin() * larger


def _unscaled_share(model: Model, inverse: Any) -> Any:
    """How much of each frequency stays as it was, 0 to 1: by the turns it made in the context before scaling.

    linear: nothing (arXiv:2306.15595). llama3: between 1 and 4 turns (arXiv:2407.21783). yarn: between 1 and 32 turns,
    in whole channels (arXiv:2309.00071, section 3.2).
    """
    import torch

    if model.rope_scaling_type == "linear":
        return torch.zeros_like(inverse)
    old = model.original_max_position_embeddings or LLAMA3_OLD_CONTEXT
    if model.rope_scaling_type == "llama3":
        return ((old * inverse / (2 * math.pi) - 1.0) / 3.0).clamp(0, 1)

    def channel(turns: float) -> float:
        return 2 * len(inverse) * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(model.rope_base))

    first, last = max(math.floor(channel(32.0)), 0), min(math.ceil(channel(1.0)), 2 * len(inverse) - 1)
    return 1 - ((torch.arange(len(inverse)) - first) / max(last - first, 0.001)).clamp(0, 1)
