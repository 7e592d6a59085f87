"""What our own runtime cannot train yet is said before a submission; nothing is left open for any engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from colosseum.engines.registry import ENGINES, engine_of
from tests.engines.conftest import Rendered, Resolved

TOKENIZER = ("tokenizer.kind=tokenizer_json", "tokenizer.path=/t/tokenizer.json")


@pytest.mark.parametrize("name", ["debug/sft", "debug-8b/dpo"])
def test_a_task_that_it_does_not_train_yet_is_told(name: str, resolved: Resolved) -> None:
    (note,) = engine_of("mcore").notes(resolved(name))
    assert note.startswith("engine mcore trains cpt so far")
    assert note.endswith(f"is {name.rpartition('/')[2]}")


def test_pretraining_has_no_remark(resolved: Resolved) -> None:
    assert engine_of("mcore").notes(resolved("generic")) == []


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
