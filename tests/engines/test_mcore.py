"""What an engine cannot train is said before a submission; no `auto` reaches an engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from colosseum.engines.registry import ENGINES, cannot_train, engine_of
from tests.engines.conftest import Rendered, Resolved

TOKENIZER = ("tokenizer.kind=tokenizer_json", "tokenizer.path=/t/tokenizer.json")


@pytest.mark.parametrize("name", ["debug/sft", "debug-8b/dpo"])
def test_a_task_that_an_engine_does_not_train_is_said_before_a_start(name: str, resolved: Resolved) -> None:
    recipe = resolved(name)
    for engine, its in ENGINES.items():
        sentence = cannot_train(recipe.model_copy(update={"engine": engine}))
        assert (sentence is None) == (recipe.task.kind in its.about.tasks)
        assert sentence is None or sentence.endswith(f"{recipe.name} is {recipe.task.kind}")


def test_pretraining_has_no_remark(resolved: Resolved) -> None:
    recipe = resolved("generic")
    assert engine_of("mcore").notes(recipe) == []
    assert cannot_train(recipe) is None


def _values(node: Any) -> list[Any]:
    if isinstance(node, dict):
        node = list(node.values())
    return [value for item in node for value in _values(item)] if isinstance(node, list) else [node]


@pytest.mark.parametrize("precision", ["bf16-gradients", "fp8-delayed"])
@pytest.mark.parametrize("engine", ENGINES)
def test_no_auto_reaches_an_engine(engine: str, precision: str, resolved: Resolved, rendered: Rendered) -> None:
    words = (f"engine={engine}", f"precision={precision}", "precision.fp8_params=auto", *TOKENIZER)
    assert "auto" not in _values(resolved("generic", *words).model_dump())
    assert resolved("generic", *words).precision.fp8_params is (precision != "bf16-gradients")
    for name, data in rendered("generic", *words).files.items():
        if name.endswith(".json"):
            assert "auto" not in _values(json.loads(data)), name
        elif name.endswith(".yaml"):
            assert "auto" not in _values(yaml.safe_load(data)), name
