"""Parameters and model FLOPs of a dense GPT.

Legend: h hidden, f FFN width, a heads, g KV groups, d head dimension, V padded vocabulary, L layers, s sequence length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from colosseum.recipe.schema import Model, padded_vocab

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The numbers of a model that cost and memory depend on."""

    layers: int
    hidden: int
    heads: int
    groups: int
    head_dim: int
    ffn: int
    gated: bool
    vocab: int
    vocab_unit: int
    """Megatron pads the vocabulary to a multiple of this times tp."""
    tied: bool
    bias: bool
    qkv_bias: bool
    """Of the QKV projection, with those of all linear layers or alone."""
    qk_norm: bool
    """A norm of the queries and keys of each head."""
    norm_params: int
    """Parameters of one norm, in units of h: 2 LayerNorm (scale, shift), 1 RMSNorm."""
    learned_positions: int
    """Rows of a learned position embedding; 0 = RoPE."""
    hidden_dropout: bool
    attention_dropout: bool

    @classmethod
    def of(cls, model: Model, seq_length: int) -> Shape:
        """The shape of a recipe's model section."""
        learned = model.position_embedding_type == "learned_absolute"
        return cls(
            layers=model.num_layers,
            hidden=model.hidden_size,
            heads=model.num_attention_heads,
            groups=model.query_groups,
            head_dim=model.head_dim,
            ffn=model.ffn,
            gated=model.gated_linear_unit,
            vocab=model.vocab_size,
            vocab_unit=model.make_vocab_size_divisible_by,
            tied=model.tied_embeddings,
            bias=model.add_bias_linear,
            qkv_bias=model.add_bias_linear or model.add_qkv_bias,
            qk_norm=model.qk_layernorm,
            norm_params=1 if model.normalization == "RMSNorm" else 2,
            learned_positions=(model.max_position_embeddings or seq_length) if learned else 0,
            hidden_dropout=model.hidden_dropout > 0,
            attention_dropout=model.attention_dropout > 0,
        )

    @property
    def qkv_width(self) -> int:
        """Rows of the fused QKV projection: (a + 2 g) d."""
        return (self.heads + 2 * self.groups) * self.head_dim

    @property
    def layer_matmul_params(self) -> int:
        """Weights of one layer's four GEMMs: QKV, output projection, the MLP's two (three when gated)."""
        return self.hidden * self.qkv_width + self.heads * self.head_dim * self.hidden + self.layer_mlp_params

    @property
    def layer_mlp_params(self) -> int:
        """Weights of the MLP's two GEMMs, the first twice as wide when gated."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def layer_small_params(self) -> int:
        """Norms and biases of one layer; they are not split by tp."""
        small = 2 * self.norm_params * self.hidden
        if self.qk_norm:
            small += 2 * self.norm_params * self.head_dim
        if self.qkv_bias:
            small += self.qkv_width
        if self.bias:
            small += 2 * self.hidden + self.ffn * (2 if self.gated else 1)
        return small

    @property
    def embedding_params(self) -> int:
        """One embedding matrix, unpadded: V h."""
        return self.vocab * self.hidden

    @property
    def params(self) -> int:
        """All parameters, vocabulary unpadded. Nemotron-4-340B: 341.0e9 (arXiv:2406.11704)."""
        tables = self.embedding_params * (1 if self.tied else 2) + self.learned_positions * self.hidden
        return (
            self.layers * (self.layer_matmul_params + self.layer_small_params) + tables + self.norm_params * self.hidden
        )

    def padded_vocab(self, tp: Any) -> Any:
        """Embedding rows at a tensor-parallel size (array or int)."""
        return padded_vocab(self.vocab, self.vocab_unit, tp)


def model_flops_per_token(shape: Shape, seq_length: int, *, causal: bool) -> float:
    """Forward and backward FLOPs a token needs, without recomputation and without the input embedding.

    6 (L P_layer + V h) + 12 L s a d, the attention term halved when only the causal half is counted
    (arXiv:2205.05198 appendix, with grouped queries and the gated MLP counted as they are). Megatron-LM at
    core_r0.8.0 and NVIDIA's DGX Cloud tables count full attention, Megatron-Bridge and current Megatron-LM half.
    """
    weights = 6.0 * (shape.layers * shape.layer_matmul_params + shape.vocab * shape.hidden)
    attention = 12.0 * shape.layers * seq_length * shape.heads * shape.head_dim
    return weights + attention * (0.5 if causal else 1.0)
