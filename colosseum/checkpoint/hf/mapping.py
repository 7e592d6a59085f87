"""Which Hugging Face tensors each megatron-core tensor is made of, with their shapes. No torch.

``checkpoint/torchdist.py`` reads and writes the megatron-core tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from colosseum.checkpoint.hf.config import Family
from colosseum.recipe.schema import Model

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
How = Literal["same", "qkv", "gate_up", "vocabulary"]
"""same: one tensor as it is. qkv: rows sorted by KV group, each its queries, its key, its value. gate_up: one above the
other. vocabulary: rows of zeros behind it, to ``Model.padded_vocab``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A megatron-core tensor; of one layer, or of none."""

    key: str
    layer: int | None
    how: How
    names: tuple[str, ...]
    """Hugging Face names, in the order in which the tensors are joined."""
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of ``names``."""


def parts(family: Family, model: Model) -> Iterator[Part]:
    """Every tensor of the model, in the order of its layers."""
    table = (model.vocab_size, model.hidden_size)
    yield _one("embedding.word_embeddings.weight", None, EMBEDDING, table, "vocabulary")
    for layer in range(model.num_layers):
        yield from _layer(family, model, layer)
    yield from _norm(family, "decoder.final_layernorm.", None, "model.norm.", model.hidden_size)
    if not model.tied_embeddings:
        yield _one("output_layer.weight", None, OUTPUT, table, "vocabulary")


def _one(key: str, layer: int | None, name: str, shape: tuple[int, ...], how: How = "same") -> Part:
    return Part(key=key, layer=layer, how=how, names=(name,), shapes=(shape,))


def _norm(family: Family, key: str, layer: int | None, name: str, hidden: int) -> Iterator[Part]:
    yield _one(f"{key}weight", layer, f"{name}weight", (hidden,))
    if family.normalization == "LayerNorm":
        yield _one(f"{key}bias", layer, f"{name}bias", (hidden,))


def _layer(family: Family, model: Model, layer: int) -> Iterator[Part]:
    h, f, d = model.hidden_size, model.ffn, model.head_dim
    queries, keys = model.num_attention_heads * d, model.query_groups * d
    ours, theirs = "decoder.layers.", f"model.layers.{layer}."
    attention, mlp = f"{theirs}self_attn.", f"{theirs}mlp."
    yield from _norm(family, f"{ours}self_attention.linear_qkv.layer_norm_", layer, f"{theirs}input_layernorm.", h)
    for kind, columns in (("weight", (h,)), ("bias", ())) if family.qkv_bias else (("weight", (h,)),):
        yield Part(
            key=f"{ours}self_attention.linear_qkv.{kind}",
            layer=layer,
            how="qkv",
            names=tuple(f"{attention}{n}_proj.{kind}" for n in "qkv"),
            shapes=((queries, *columns), (keys, *columns), (keys, *columns)),
        )
    for n in "qk" if family.qk_norm else "":
        yield from _norm(family, f"{ours}self_attention.{n}_layernorm.", layer, f"{attention}{n}_norm.", d)
    yield _one(f"{ours}self_attention.linear_proj.weight", layer, f"{attention}o_proj.weight", (h, queries))
    yield from _norm(family, f"{ours}mlp.linear_fc1.layer_norm_", layer, f"{theirs}post_attention_layernorm.", h)
    fc1 = f"{ours}mlp.linear_fc1.weight"
    if family.gated:
        names = (f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight")
        yield Part(key=fc1, layer=layer, how="gate_up", names=names, shapes=((f, h), (f, h)))
    else:
        yield _one(fc1, layer, f"{mlp}up_proj.weight", (f, h))
    yield _one(f"{ours}mlp.linear_fc2.weight", layer, f"{mlp}down_proj.weight", (h, f))
