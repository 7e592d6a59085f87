"""The weights that a model has in a torch_dist checkpoint: names and shapes, by the model section. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from colosseum.recipe.schema import Model

Weight = tuple[str, int | None, tuple[int, ...]]
"""Name, layer (None = of none), shape without the axis of the layers."""
TABLES = ("embedding.word_embeddings.weight", "output_layer.weight")
"""Their rows are the vocabulary, padded."""


def weights_of(model: Model) -> Iterator[Weight]:
    """Every weight, in the order of the layers; tables with ``vocab_size`` rows."""
    table = (model.vocab_size, model.hidden_size)
    yield TABLES[0], None, table
    if model.position_embedding_type == "learned_absolute":
        assert model.max_position_embeddings is not None
        yield "embedding.position_embeddings.weight", None, (model.max_position_embeddings, model.hidden_size)
    for layer in range(model.num_layers):
        for name, shape in _layer(model):
            yield f"decoder.layers.{name}", layer, shape
    for name, shape in _norm(model, "decoder.final_layernorm.", model.hidden_size):
        yield name, None, shape
    if not model.tied_embeddings:
        yield TABLES[1], None, table


def _norm(model: Model, name: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for part in ("weight",) if model.normalization == "RMSNorm" else ("weight", "bias"):
        yield f"{name}{part}", (width,)


def _layer(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads = model.hidden_size, model.num_attention_heads * model.head_dim
    wide = model.ffn * (2 if model.gated_linear_unit else 1)
    qkv, biased = heads + 2 * model.query_groups * model.head_dim, model.add_bias_linear
    yield from _norm(model, "self_attention.linear_qkv.layer_norm_", hidden)
    yield from _linear("self_attention.linear_qkv", (qkv, hidden), biased or model.add_qkv_bias)
    for name in "qk" if model.qk_layernorm else "":
        yield from _norm(model, f"self_attention.{name}_layernorm.", model.head_dim)
    yield from _linear("self_attention.linear_proj", (hidden, heads), biased)
    yield from _norm(model, "mlp.linear_fc1.layer_norm_", hidden)
    yield from _linear("mlp.linear_fc1", (wide, hidden), biased)
    yield from _linear("mlp.linear_fc2", (hidden, model.ffn), biased)


def _linear(name: str, shape: tuple[int, int], biased: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    if biased:
        yield f"{name}.bias", shape[:1]
