"""What a checkpoint's description refuses, and when two models are not the same."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from colosseum.checkpoint.metadata import CheckpointMetadata
from tests.checkpoint.test_folders import SHAPE, metadata


def test_the_document_has_the_names_of_the_contract() -> None:
    document = metadata(8, {}).model_dump(mode="json", by_alias=True)
    assert document["schema"] == "colosseum.checkpoint/1"
    assert {"step", "consumed_samples", "consumed_tokens", "layout", "model", "dtype", "fp8"} <= set(document)
    assert {"tokens_by_source", "recipe_hash", "run_id", "versions", "save_time_s", "files"} <= set(document)
    assert set(document["layout"]) == {"tp", "pp", "vpp", "cp", "dp"}
    assert CheckpointMetadata.model_validate(document) == metadata(8, {})


@pytest.mark.parametrize("change", [{"step": "eight"}, {"surprise": 1}, {"schema": "colosseum.checkpoint/2"}])
def test_another_document_is_not_taken(change: dict[str, object]) -> None:
    document = metadata(8, {}).model_dump(mode="json", by_alias=True)
    with pytest.raises(ValidationError):
        CheckpointMetadata.model_validate({**document, **change})


def test_only_the_sequence_length_may_differ() -> None:
    assert SHAPE.differences(SHAPE.model_copy(update={"seq_length": 128})) == []
    other = SHAPE.model_copy(update={"num_layers": 4, "vocab_size": 1024})
    assert SHAPE.differences(other) == [
        "num_layers 2 (the recipe says 4)",
        "vocab_size 512 (the recipe says 1024)",
    ]
