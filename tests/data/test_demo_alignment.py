"""The demo's alignment data: right answers, held-out questions, and enough rows for the debug recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from colosseum.data.align.rows import parse_row
from colosseum.data.demo_alignment import write_alignment
from colosseum.recipe.load import load


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    written = write_alignment(tmp_path_factory.mktemp("demo"))
    return {p.stem: [json.loads(line) for line in p.read_text().splitlines()] for p in written}


def test_questions_are_held_out(files: dict[str, list[dict[str, Any]]]) -> None:
    keys = {"sft": "conversations", "dpo": "prompt"}
    asked = {name: [row[keys[name[:3]]][0]["value"] for row in rows] for name, rows in files.items()}
    assert len(set(asked["sft-train"])) == len(asked["sft-train"])
    assert asked["sft-train"] == asked["dpo-train"]
    assert not set(asked["sft-train"]) & set(asked["sft-validation"])
    assert asked["sft-validation"] == asked["dpo-validation"]


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_enough_for_the_debug_recipes(stage: str, files: dict[str, list[dict[str, Any]]]) -> None:
    recipe = load(f"debug/{stage}").recipe
    assert Path(str(recipe.data.train)).name == f"{stage}-train.jsonl"
    assert Path(str(recipe.data.validation)).name == f"{stage}-validation.jsonl"
    assert len(files[f"{stage}-train"]) >= 20 * recipe.batch.gbs
    assert len(files[f"{stage}-validation"]) >= recipe.train.val_steps * recipe.batch.gbs


def test_answers(files: dict[str, list[dict[str, Any]]]) -> None:
    for row in files["sft-train"] + files["sft-validation"]:
        parse_row(row, "chat")
        question, answer = (t["value"] for t in row["conversations"])
        digits = [int(w) for w in question.replace("?", " ").replace(".", " ").replace(",", " ").split() if w.isdigit()]
        if "plus" in question or "Add" in question or "+" in question:
            assert answer == f"{sum(digits)}."
        elif "larger" in question:
            assert answer == f"{max(digits)}."


def test_sides_differ_and_length_tells_nothing(files: dict[str, list[dict[str, Any]]]) -> None:
    longer = 0
    for row in files["dpo-train"]:
        parse_row(row, "preference")
        chosen, rejected = (row[side][0]["value"] for side in ("chosen", "rejected"))
        assert chosen != rejected
        longer += len(rejected) > 2 * len(chosen)
    assert longer / len(files["dpo-train"]) > 0.3
