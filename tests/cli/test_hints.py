"""What people type first is understood, or answered with what they meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colosseum.errors import RefusedInput
from colosseum.recipe.load import load
from tests.cli.conftest import Cli

BASE = "debug/cpt-4k-bf16"
"""Its lr is 0.002, its min_lr a tenth of that."""


def test_min_lr_keeps_its_ratio_to_an_lr_that_is_set_alone() -> None:
    loaded = load(BASE, ["optimizer.lr=1e-5"])
    assert loaded.recipe.optimizer.min_lr == pytest.approx(1e-6)
    (note,) = loaded.warnings
    assert note.startswith("optimizer.min_lr = 1e-06 keeps its ratio to optimizer.lr, 0.1")
    assert "ratio" in loaded.origins["optimizer.min_lr"][-1].where


@pytest.mark.parametrize(
    ("words", "min_lr"),
    [
        (["optimizer.lr=1e-3", "optimizer.min_lr=3e-4"], 3e-4),
        (["optimizer.min_lr=3e-4", "optimizer.lr=1e-3"], 3e-4),
        (["optimizer.lr=1e-3", "~optimizer.min_lr"], 0.0),
        (["optimizer.lr=0.002"], 2e-4),
        (["train.steps=70"], 2e-4),
    ],
)
def test_min_lr_is_left_alone_otherwise(words: list[str], min_lr: float) -> None:
    loaded = load(BASE, words)
    assert loaded.recipe.optimizer.min_lr == pytest.approx(min_lr)
    assert loaded.warnings == ()


@pytest.mark.parametrize("value", ["1e-4x", "[1e-4]", "null", "true", "-1"])
def test_a_field_that_is_not_valid_makes_one_fault(value: str) -> None:
    """No rule compares another field with the default that stands in for it."""
    with pytest.raises(RefusedInput) as caught:
        load(BASE, [f"optimizer.lr={value}"])
    assert [fault.path for fault in caught.value.faults] == ["optimizer.lr"]


@pytest.mark.parametrize(
    ("word", "typed"),
    [("name=614e210", "614e210"), ("resources.time_limit=12:00:00", "12:00:00"), ("train.steps=1e3x", "1e3x")],
)
def test_a_refusal_quotes_what_was_typed(word: str, typed: str) -> None:
    with pytest.raises(RefusedInput) as caught:
        load(BASE, [word])
    assert [fault.value for fault in caught.value.faults] == [typed]


@pytest.mark.parametrize(
    ("word", "field"),
    [
        ("lr=1e-4", "optimizer.lr"),
        ("learning_rate=1e-4", "optimizer.lr"),
        ("model.lr=1e-4", "optimizer.lr"),
        ("optimizer.learning_rate=1e-4", "optimizer.lr"),
        ("optimizer.lrr=1e-4", "lr"),
        ("batch.global_batch_size=8", "batch.gbs"),
        ("tensor_model_parallel_size=2", "parallelism.tp"),
    ],
)
def test_an_unknown_key_is_answered_with_the_field_that_is_meant(word: str, field: str) -> None:
    with pytest.raises(RefusedInput) as caught:
        load(BASE, [word])
    assert field in caught.value.faults[0].nearest


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("validate", BASE, "optimizer.lr", "1e-4"), "nearest: optimizer.lr=1e-4"),
        (("validate", BASE, "--lr", "1e-4"), "optimizer.lr=VALUE"),
        (("train", "sft"), "colosseum align sft"),
        (("align", "cpt"), "colosseum train cpt"),
    ],
)
def test_words_at_the_wrong_place_are_answered_with_the_right_command(
    words: tuple[str, ...], hint: str, cli: Cli
) -> None:
    done = cli(*words)
    assert done.code == 2
    assert hint in " ".join(done.err.split())


@pytest.mark.parametrize("words", [(), ("train",), ("train", "cpt"), ("plan",), ("jobs", "list")])
def test_h_is_help(words: tuple[str, ...], cli: Cli) -> None:
    short, long = cli(*words, "-h"), cli(*words, "--help")
    assert (short.code, short.out) == (0, long.out)


def test_an_empty_recipe_is_one_fault(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("")
    done = cli("validate", str(tmp_path / "mine.yaml"), "--json")
    (fault,) = json.loads(done.out)["faults"]
    assert done.code == 2
    assert "defaults list" in fault["rule"]


def test_explain_shows_every_task(cli: Cli) -> None:
    (field,) = json.loads(cli("explain", "debug/sft", "task.kind", "--json").out)["fields"]
    assert field["legal"] == "cpt | sft | dpo"
