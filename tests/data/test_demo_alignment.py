"""The demo's alignment data: right answers, held-out questions, and enough rows for the debug recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from colosseum.data.align.rows import parse_row
from colosseum.data.demo_alignment import DAYS, EVASIONS, HEDGES, MONTHS, OPPOSITES, write_alignment
from colosseum.recipe.load import load


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    written = write_alignment(tmp_path_factory.mktemp("demo"))
    return {p.stem: [json.loads(line) for line in p.read_text().splitlines()] for p in written}


def test_questions_are_held_out(files: dict[str, list[dict[str, Any]]]) -> None:
    keys = {"sft": "conversations", "dpo": "prompt"}
    asked = {
        name: [row[keys[name[:3]]][0]["value"] for row in rows] for name, rows in files.items() if name[:3] in keys
    }
    assert len(set(asked["sft-train"])) == len(asked["sft-train"])
    assert asked["sft-train"] == asked["dpo-train"]
    assert not set(asked["sft-train"]) & set(asked["sft-validation"])
    assert asked["sft-validation"] == asked["dpo-validation"]
    assert asked["sft-validation"] == [row["prompt"] for row in files["questions"]]


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_enough_for_the_debug_recipes(stage: str, files: dict[str, list[dict[str, Any]]]) -> None:
    recipe = load(f"debug/{stage}").recipe
    assert Path(str(recipe.data.train)).name == f"{stage}-train.jsonl"
    assert Path(str(recipe.data.validation)).name == f"{stage}-validation.jsonl"
    assert len(files[f"{stage}-train"]) >= 10 * recipe.batch.gbs
    assert len(files[f"{stage}-validation"]) >= recipe.train.val_steps * recipe.batch.gbs


def plain(answer: str) -> str:
    """Without the hedge."""
    for form in HEDGES:
        before, after = form.split("{}")
        if answer.startswith(before) and answer.endswith(after):
            return answer.removeprefix(before)
    return answer


def test_answers(files: dict[str, list[dict[str, Any]]]) -> None:
    hedges = 0
    for row in files["sft-train"]:
        parse_row(row, "chat")
        question, answer = (t["value"] for t in row["conversations"])
        hedges += plain(answer) != answer
        known = [(a, b) for names in (DAYS, MONTHS) for a, b in zip(names, (*names[1:], names[0]), strict=True)]
        known += [*OPPOSITES, *((b, a) for a, b in OPPOSITES)]
        assert any(asked in question and plain(answer) == f"{expected}." for asked, expected in known), question
    assert hedges / len(files["sft-train"]) == pytest.approx(0.75, abs=0.01)


def test_the_chosen_answer_is_plain_and_the_rejected_one_hedges_or_evades(
    files: dict[str, list[dict[str, Any]]],
) -> None:
    for row in files["dpo-train"]:
        parse_row(row, "preference")
        chosen, rejected = (row[side][0]["value"] for side in ("chosen", "rejected"))
        assert chosen != rejected
        assert plain(rejected) == chosen or rejected in EVASIONS
