"""What a checkpoint's description refuses, and when two models are not the same."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from colosseum.checkpoint.metadata import CheckpointMetadata, ModelShape
from tests.checkpoint.test_folders import SHAPE, metadata


def test_the_document_has_the_names_of_the_contract() -> None:
    document = metadata(8, {}).model_dump(mode="json", by_alias=True)
    assert document["schema"] == "colosseum.checkpoint/2"
    assert {"step", "consumed_samples", "consumed_tokens", "layout", "model", "dtype", "fp8"} <= set(document)
    assert {"tokens_by_source", "recipe_hash", "run_id", "versions", "save_time_s", "files"} <= set(document)
    assert set(document["layout"]) == {"tp", "pp", "vpp", "cp", "dp"}
    assert CheckpointMetadata.model_validate(document) == metadata(8, {})


@pytest.mark.parametrize("change", [{"step": "eight"}, {"surprise": 1}, {"schema": "colosseum.checkpoint/3"}])
def test_another_document_is_not_taken(change: dict[str, object]) -> None:
    document = metadata(8, {}).model_dump(mode="json", by_alias=True)
    with pytest.raises(ValidationError):
        CheckpointMetadata.model_validate({**document, **change})


LLAMA = SHAPE.model_copy(
    update={
        "kv_channels": 8,
        "activation_func": "silu",
        "gated_linear_unit": True,
        "normalization": "RMSNorm",
        "layernorm_zero_centered_gamma": False,
        "layernorm_epsilon": 1e-5,
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "qk_layernorm": False,
        "position_embedding_type": "rope",
        "rotary_percent": 1.0,
        "rope_base": 10000,
        "rope_scaling": None,
        "positions": None,
    }
)


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("num_layers", 4),
        ("vocab_size", 1024),
        ("tied_embeddings", True),
        ("kv_channels", 16),
        ("activation_func", "gelu"),
        ("gated_linear_unit", False),
        ("normalization", "LayerNorm"),
        ("layernorm_zero_centered_gamma", True),
        ("layernorm_epsilon", 1e-6),
        ("add_bias_linear", True),
        ("add_qkv_bias", True),
        ("qk_layernorm", True),
        ("position_embedding_type", "learned_absolute"),
        ("rotary_percent", 0.5),
    ],
)
def test_what_gives_weights_their_meaning_may_not_differ(field: str, other: object) -> None:
    wanted = LLAMA.model_copy(update={field: other})
    assert LLAMA.differences(wanted) == [f"{field} {getattr(LLAMA, field)} (the recipe says {other})"]
    assert LLAMA.changes(wanted) == []


@pytest.mark.parametrize(("field", "other"), [("seq_length", 16384), ("rope_base", 500000), ("rope_scaling", 8.0)])
def test_what_training_learns_may_change_and_is_said(field: str, other: object) -> None:
    wanted = LLAMA.model_copy(update={field: other})
    assert LLAMA.differences(wanted) == []
    assert LLAMA.changes(wanted) == [f"{field} {getattr(LLAMA, field)} → {other}"]
    if field == "rope_scaling":
        assert wanted.changes(LLAMA) == ["rope_scaling 8.0 → None"]


def test_every_field_of_a_shape_is_told_one_way_or_the_other() -> None:
    for name in ModelShape.model_fields:
        wanted = LLAMA.model_copy(update={name: "another"})
        if getattr(LLAMA, name) is not None:
            assert len(LLAMA.differences(wanted)) + len(LLAMA.changes(wanted)) == 1, name


def test_a_checkpoint_of_the_first_schema_still_says_what_it_says() -> None:
    document = metadata(8, {}).model_dump(mode="json", by_alias=True)
    first = {"num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "vocab_size"}
    first |= {"tied_embeddings", "seq_length"}
    document["schema"] = "colosseum.checkpoint/1"
    document["model"] = {name: document["model"][name] for name in first}
    old = CheckpointMetadata.model_validate(document).model
    assert old.differences(LLAMA) == old.changes(LLAMA) == []
    assert old.differences(LLAMA.model_copy(update={"hidden_size": 128})) != []
