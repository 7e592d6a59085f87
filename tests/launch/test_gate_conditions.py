"""``gate:`` of a campaign's stage: what it takes, and what it says of scores and validation losses."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from colosseum.errors import RefusedInput
from colosseum.evaluation.folder import EvaluationFolder, Result, ScoreRow
from colosseum.evaluation.settings import Settings
from colosseum.launch.campaigns.conditions import At, judged, parse
from colosseum.rundir import CHECKPOINT_MARK, RunDir, append_line, checkpoint_folder


def settings() -> Settings:
    return Settings(
        tasks=("ifeval",),
        own_tasks={},
        few_shot=None,
        chat=False,
        chat_template="",
        bos=False,
        seed=1,
        limit=None,
        backend="runtime",
        harness="0",
    )


def checkpoint(run: RunDir, step: int, scores: dict[str, float]) -> At:
    """A checkpoint with an evaluation: only its mark matters here."""
    folder = checkpoint_folder(run.checkpoints, step)
    folder.mkdir(parents=True)
    (folder / CHECKPOINT_MARK).write_text(json.dumps({"run": run.root.name, "step": step}))
    weights = hashlib.sha256((folder / CHECKPOINT_MARK).read_bytes()).hexdigest()
    place = EvaluationFolder(run.evaluations / f"iter-{step}")
    place.root.mkdir(parents=True)
    rows = [
        ScoreRow(task=task, metric="acc", mean=mean, low=mean - 0.02, high=mean + 0.02, count=500)
        for task, mean in scores.items()
    ]
    result = Result(
        schema="colosseum.evaluation/1",
        target=str(folder),
        weights=weights,
        settings=settings(),
        scores=tuple(rows),
        members={},
        parts={},
        contamination={},
        cut=0,
    )
    place.write(result, [])
    return At(run, step)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[At, At]:
    """A checkpoint, and the one that its run began from."""
    ours, parent = RunDir(tmp_path / "sft"), RunDir(tmp_path / "cpt")
    for run, losses in ((ours, {50: 1.6, 100: 1.5, 150: 1.9}), (parent, {100: 1.45})):
        run.root.mkdir()
        for step, loss in losses.items():
            append_line(run.metrics, {"kind": "val", "step": step, "attempt": 0, "loss": loss})
    return checkpoint(ours, 100, {"ifeval": 0.40, "mmlu": 0.80}), checkpoint(parent, 100, {"ifeval": 0.42})


@pytest.mark.parametrize(
    ("name", "text", "holds"),
    [
        ("ifeval", ">= parent - 1pt", False),
        ("ifeval", ">= parent - 2.5pt", True),
        ("ifeval", ">= parent", False),
        ("ifeval:acc", ">=40%", True),
        ("ifeval", ">= 0.41", False),
        ("mmlu", ">= 80%", True),
        ("val_loss", "<= parent + 0.05", True),
        ("val_loss", "<= parent", False),
        ("val_loss", "<= 1.5", True),
    ],
)
def test_conditions(pair: tuple[At, At], name: str, text: str, holds: bool) -> None:
    """The loss is that of the checkpoint's step, not of a later one."""
    faults, notes = judged([parse(name, text, "c.yaml")], *pair)
    assert (len(faults), len(notes)) == ((0, 1) if holds else (1, 0)), faults


def test_the_figures_are_shown(pair: tuple[At, At]) -> None:
    (fault,), _ = judged([parse("ifeval", ">= parent - 1pt", "")], *pair)
    assert fault == (
        "gate ifeval >= parent - 1pt fails: sft@100 40.00% (38.00% to 42.00%), "
        "parent cpt@100 42.00% (40.00% to 44.00%); limit 41.00%"
    )
    _, (note,) = judged([parse("val_loss", "<= parent + 0.05", "")], *pair)
    assert note.endswith("holds: sft@100 1.5000 (step 100), parent cpt@100 1.4500 (step 100); limit 1.5000")


def test_what_is_missing_holds_with_the_command_that_makes_it(pair: tuple[At, At]) -> None:
    ours, parent = pair
    (fault,), _ = judged([parse("mmlu", ">= parent", "")], ours, parent)
    assert "cpt@100 was not evaluated: colosseum evaluate cpt@100 --tasks mmlu" in fault
    (fault,), _ = judged([parse("mmlu", ">= parent", "")], ours, None)
    assert "began from no checkpoint of a run" in fault


def test_scores_of_other_weights_do_not_count(pair: tuple[At, At]) -> None:
    """The step was trained again after it was evaluated."""
    ours, parent = pair
    (checkpoint_folder(ours.run.checkpoints, 100) / CHECKPOINT_MARK).write_text('{"trained": "again"}')
    (fault,), _ = judged([parse("ifeval", ">= 0", "")], ours, parent)
    assert "sft@100 was not evaluated" in fault


@pytest.mark.parametrize(
    "text", ["", "parent", "> parent", ">= parent - 1 pp", ">= 1pt", ">= -1", ">= nan", ">= parent * 2"]
)
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(RefusedInput, match="a condition is"):
        parse("ifeval", text, "c.yaml")


def test_a_loss_has_no_points() -> None:
    with pytest.raises(RefusedInput, match="a condition is"):
        parse("val_loss", "<= parent + 1pt", "c.yaml")
