"""What an engine cannot train is said before a submission; no `auto` reaches an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from colosseum.engines.registry import ENGINES, cannot_train, engine_of
from colosseum.launch.runs.submit import prepare
from colosseum.recipe.load import load
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


LORA = "task.lora={rank: 8}"
PP2 = ("parallelism.tp=1", "parallelism.pp=2", "parallelism.sequence_parallel=false")


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ((LORA,), None),
        ((LORA, "task.reference=resident"), None),
        ((LORA, "task.reference=resident", "task.reference_from=run:other"), "task.reference"),
        (
            (LORA, "precision=fp8-delayed", "precision.fp8_params=true", "precision.moments_dtype=fp32"),
            "precision.fp8_params",
        ),
        ((LORA, *PP2, "overlap.defer_embedding_wgrad_compute=true"), "overlap.defer_embedding_wgrad_compute"),
    ],
)
def test_what_frozen_weights_cannot_be_combined_with(words: tuple[str, ...], path: str | None) -> None:
    recipe = load("debug-8b/dpo", ["cluster=dgx-h100", *words]).recipe
    assert [fault.path for fault in engine_of("mcore").faults(recipe)] == ([] if path is None else [path])


@pytest.mark.parametrize(("engine", "where"), [("mcore", "precomputed"), ("nemo1", "host")])
def test_the_reference_policy_is_where_the_engine_has_it(engine: str, where: str, tmp_path: Path) -> None:
    words = ["cluster=dgx-h100", f"engine={engine}", "task.reference=auto"]
    recipe = load("colosseum-355b/dpo", words).recipe
    its = engine_of(engine)
    pinned = its.pinned(recipe)
    assert pinned.task.reference == where  # type: ignore[union-attr]
    assert its.faults(recipe) == its.faults(pinned) == []
    assert prepare(recipe, tmp_path).recipe.task.reference == where  # type: ignore[union-attr]


@pytest.mark.parametrize("engine", ["nemo1", "nemo2"])
def test_packing_and_lora_are_this_runtimes(engine: str) -> None:
    words = ["cluster=dgx-h100", "task.packing=true", LORA]
    faults = engine_of(engine).faults(load("colosseum-355b/sft", words).recipe)
    assert {"task.packing", "task.lora"} <= {fault.path for fault in faults}


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
