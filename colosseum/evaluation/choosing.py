"""A selection on the disk: candidates from evaluations, the choice among them, its JSON and its picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from colosseum.atomic import write_whole
from colosseum.errors import Fault, RefusedInput
from colosseum.evaluation.folder import EvaluationFolder, Result, ScoreRow
from colosseum.evaluation.picture import draw
from colosseum.evaluation.selection import By, Candidate, Choice

SCHEMA = "colosseum.selection/1"


def scores_named(words: Sequence[str], result: Result) -> list[By]:
    """The words of ``--by``: TASK (its main metric) or TASK:METRIC.

    Raises:
        RefusedInput: it was not evaluated, or has no interval.
    """
    return [By(row.task, row.metric) for row in (_row(word, result) for word in words)]


def _row(word: str, result: Result) -> ScoreRow:
    task, _, metric = word.partition(":")
    try:
        row = result.main(task, metric or None)
    except KeyError:
        known = tuple(dict.fromkeys(f"{r.task}:{r.metric}" for r in result.scores))
        raise RefusedInput(
            [Fault(path="--by", value=word, rule="was not evaluated", nearest=known[:5], where="command line")]
        ) from None
    if row.low is None:
        rule = "has no interval: it is no mean over items, or lower is better"
        raise RefusedInput([Fault(path="--by", value=word, rule=rule, where="command line")])
    return row


def candidate(name: str, run: str, step: int, folder: EvaluationFolder, by: Sequence[By]) -> Candidate:
    """A checkpoint whose evaluation is finished."""
    result = folder.read()
    if result is None:
        raise RefusedInput(f"{folder.root} has no result yet")
    return Candidate(
        name=name,
        run=run,
        step=step,
        means=tuple(result.main(score.task, score.metric).mean for score in by),
        items=tuple(folder.read_items()),
        members=dict(result.members),
    )


def write(
    folder: Path, by: Sequence[By], results: Sequence[tuple[str, Result]], choice: Choice, parent: str | None
) -> dict[str, Any]:
    """selection.json and selection.png; what the JSON holds.

    Args:
        results: name and result of each candidate, and of the parent (last), if there is one.
    """
    names = [f"{score.task}:{score.metric}" for score in by]
    rows = [
        {"name": name, "scores": [result.main(s.task, s.metric).model_dump(mode="json") for s in by]}
        for name, result in results
    ]
    found = {"schema": SCHEMA, "by": names, "parent": parent, "candidates": rows, **asdict(choice)}
    folder.mkdir(parents=True, exist_ok=True)
    bars = []
    for score in by:
        its = [result.main(score.task, score.metric) for _, result in results]
        bars.append(
            [(r.mean, *((r.mean, r.mean) if r.low is None or r.high is None else (r.low, r.high))) for r in its]
        )
    labels = [name for name, _ in results]
    draw(folder / "selection.png", names, labels, bars, choice.chosen, parent or "")
    write_whole(folder / "selection.json", (json.dumps(found, indent=2) + "\n").encode())
    return found
