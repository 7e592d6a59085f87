"""Scores by lm-evaluation-harness: our runtime's are transformers' on the exported folder, and the harness's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.made import IFEVAL, SUBJECTS, mmlu_rows
from tests.evaluation.worker import MMLU

Found = dict[str, Any]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What worker.py finds."""
    root = tmp_path_factory.mktemp("evaluated")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HOME": str(root / "hf"), "COLUMNS": "160"}
    command = [sys.executable, "-m", "tests.evaluation.worker", str(root)]
    done = subprocess.run(command, env=env, cwd=Path(__file__).parents[2], capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    result: Found = json.loads((root / "found.json").read_text())
    return result


def scores(result: Found) -> dict[tuple[str, str], float]:
    assert "refused" not in result, result
    return {(row["task"], row["metric"]): row["mean"] for row in result["scores"]}


@pytest.mark.parametrize("chat", ["False", "True"])
def test_log_likelihoods_and_answers_are_those_of_the_exported_folder(found: Found, chat: str) -> None:
    ours, theirs = found["equal"][chat]
    assert ours["answers"].keys() == theirs["answers"].keys(), "the same requests, with the same chat template"
    assert len(ours["answers"]) == 2 * 10 * 4 + (0 if chat == "True" else len(IFEVAL))
    likelihoods = {key: answer for key, answer in ours["answers"].items() if isinstance(answer, list)}
    for key, (score, greedy) in likelihoods.items():
        assert score == pytest.approx(theirs["answers"][key][0], abs=1e-4)
        assert greedy == theirs["answers"][key][1]
    texts = {key: answer for key, answer in ours["answers"].items() if isinstance(answer, str)}
    assert texts == {key: theirs["answers"][key] for key in texts}
    assert chat == "True" or any(texts.values())
    assert scores(ours["result"]) == scores(theirs["result"])


def test_numbers_are_those_of_the_harness_run_by_hand(found: Found) -> None:
    ours = scores(found["equal"]["False"][1]["result"])
    by_hand = {
        (task, key.removesuffix(",none")): value
        for task, row in found["by_hand"].items()
        for key, value in row.items()
        if key.endswith(",none") and "stderr" not in key
    }
    assert ours == by_hand
    assert {metric for task, metric in ours if task == "ifeval"} == {
        f"{level}_level_{kind}_acc" for level in ("prompt", "inst") for kind in ("strict", "loose")
    }


def test_what_was_planted_ranks_above_its_absence_with_intervals(found: Found) -> None:
    """Models whose answer is always A, and always D: right as often as the questions say."""
    rows = {s: [r["answer"] for r in mmlu_rows(s)["test"]] for s in SUBJECTS}
    for number, letter in enumerate("AD"):
        result = found["planted"][letter]
        expected = {(f"mmlu_{s}", "acc"): answers.count(3 * number) / len(answers) for s, answers in rows.items()}
        assert scores(result) == pytest.approx(expected)
        for row in result["scores"]:
            assert row["low"] <= row["mean"] <= row["high"] and row["count"] == 10
    knows, lacks = (found["planted"][letter]["scores"][1] for letter in "AD")
    assert knows["task"] == lacks["task"] == "mmlu_astronomy"
    assert knows["low"] > lacks["high"], "not by chance"


def test_settings_are_pinned_and_recorded(found: Found) -> None:
    settings = found["planted"]["A"]["settings"]
    assert settings["tasks"] == list(MMLU)
    assert (settings["few_shot"], settings["seed"], settings["limit"]) == (5, 1234, None)
    assert (settings["chat"], settings["bos"], settings["backend"]) == (True, False, "runtime")
    assert len(settings["chat_template"]) == 64
    assert settings["harness"][0].isdigit()


def test_bos_comes_once(found: Found) -> None:
    """A tokenizer that prepends it: the same log-likelihoods as transformers, which prepends it once."""
    ours, theirs = (found["prompts"][f"{backend} once"] for backend in ("runtime", "transformers"))
    assert ours["settings"]["bos"] and theirs["settings"]["bos"]
    scores_of = [{row["key"]: row["answer"][0] for row in its["answers"]} for its in (ours, theirs)]
    assert scores_of[0] == pytest.approx(scores_of[1], abs=1e-4)
    without = {row[0] for row in found["equal"]["False"][0]["answers"].values() if isinstance(row, list)}
    assert not without & set(scores_of[0].values())


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        (
            "transformers unnamed",
            "begins with the begin-of-text token (id 256) twice: the chat template and the tokenizer",
        ),
        ("transformers twice", "begins with the begin-of-text token (id 256) twice"),
        ("runtime twice", "begins with the begin-of-text token (id 256) twice"),
        ("transformers chatml", "'<|im_end|>', which is no control token of this model's tokenizer (10 tokens)"),
        ("runtime chatml", "it is the template of another model"),
    ],
)
def test_a_doubled_bos_and_a_foreign_template_are_refused(found: Found, case: str, sentence: str) -> None:
    assert sentence in found["prompts"][case]["refused"]
    assert found["prompts"][case]["answers"] == [], "before anything is computed"


def test_our_runtime_takes_bos_of_the_template_as_the_one(found: Found) -> None:
    assert "refused" not in found["prompts"]["runtime unnamed"]


def test_own_tasks_are_broken_down_by_tag_and_language(found: Found) -> None:
    """The model always says A."""
    own = found["own"]
    expected = {
        ("choices", "acc"): 2 / 3,
        ("exact", "exact_match"): 1 / 2,
        ("instructions", "prompt_level_strict_acc"): 1 / 2,
        ("instructions", "inst_level_strict_acc"): 2 / 3,
    }
    assert {key: value for key, value in scores(own).items() if key in expected} == pytest.approx(expected)
    assert {n: row[3] for n, row in own["parts"]["finance"]["language"].items()} == {"en": 2, "it": 1}
    means = {
        (task, kind, name): row[0]
        for task, kinds in own["parts"].items()
        if task != "finance"  # the guide's
        for kind, names in kinds.items()
        for name, row in names.items()
    }
    assert means == pytest.approx(
        {
            ("choices", "tag", "rating"): 2 / 3,
            ("choices", "tag", "risk"): 0.0,
            ("choices", "language", "en"): 1 / 2,
            ("choices", "language", "it"): 1.0,
            ("exact", "tag", "rating"): 1.0,
            ("exact", "tag", "sums"): 0.0,
            ("exact", "language", "en"): 1 / 2,
            ("instructions", "tag", "form"): 1.0,
            ("instructions", "tag", "content"): 0.0,
            ("instructions", "language", "en"): 1 / 2,
        }
    )


def test_a_question_in_the_training_data_is_found(found: Found) -> None:
    """The first of three; the second begins with the same words, and the third alone is left as clean."""
    row = found["own"]["contamination"]["choices"]
    assert (row["compared"], row["dirty"], row["clean"]) == (3, 1, 1)
    assert row["score_of_clean"] == 1.0
    assert found["own"]["contamination"]["exact"]["dirty"] == 0


def test_the_checkpoint_that_knows_is_selected_and_promoted(found: Found) -> None:
    document, table = found["selected"]["document"], found["selected"]["table"]
    assert (document["chosen"], document["tied"]) == ("step 20", [])
    assert document["verdict"].endswith("selected: step 20")
    names = [row["name"] for row in document["candidates"]]
    assert names == ["step 10", "step 20", "parent"]
    assert document["pareto"] == ["step 10", "step 20"], "the other one knows more algebra"
    assert document["compared"] == 2
    assert "selected" in table and "95% interval" in table and document["verdict"] in table
    folder = Path(document["folder"])
    assert (folder / "selection.png").read_bytes().startswith(b"\x89PNG")
    pointer = json.loads(Path(document["promoted"]).read_text())
    assert (pointer["run"], pointer["step"]) == ("sft", 20)
    assert found["selected"]["inspected"]["path"].endswith("sft/checkpoints/iter_0000020")


def test_a_killed_evaluation_continues(found: Found) -> None:
    killed = found["killed"]
    assert not killed["finished"], "it was killed before its end"
    assert 0 < killed["lines"] < 80
    assert f"{killed['lines']:,} of 80 answers are there from an earlier start" in killed["said"]
    assert scores(killed) == scores(found["planted"]["A"])
