"""The files of an evaluation, in one folder of one checkpoint with one set of settings.

request.json     what is evaluated and how; written first, never changed
answers.jsonl    the model's answers so far
items.jsonl      every question with its values; written with the result
evaluation.json  the scores; written last
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from colosseum.atomic import write_whole
from colosseum.bundle import to_json
from colosseum.errors import RefusedInput
from colosseum.evaluation.intervals import Interval
from colosseum.evaluation.scores import Item
from colosseum.evaluation.settings import Settings
from colosseum.reading import Unreadable, read_bytes, rows
from colosseum.recipe.base import Count, Section, Text

SCHEMA: Literal["colosseum.evaluation/1"] = "colosseum.evaluation/1"
REQUEST_SCHEMA: Literal["colosseum.evaluation-request/1"] = "colosseum.evaluation-request/1"
RESULT = "evaluation.json"
T = TypeVar("T", bound=Section)


class Request(Section):
    """request.json."""

    schema_: Literal["colosseum.evaluation-request/1"] = Field(REQUEST_SCHEMA, alias="schema")
    target: Text
    """Absolute path of a checkpoint or a Hugging Face folder."""
    weights: Text
    """Hash that tells these weights from others."""
    settings: Settings
    data: Text | None
    train_data: tuple[Text, ...]
    batch_size: Count
    as_trained: bool


class ScoreRow(Section):
    """One metric of a task or group."""

    task: str
    metric: str
    mean: float
    low: float | None
    high: float | None
    count: int | None
    """Items; null where the metric is no mean over items."""


class Result(Section):
    """evaluation.json."""

    schema_: Literal["colosseum.evaluation/1"] = Field(SCHEMA, alias="schema")
    target: Text
    weights: Text
    settings: Settings
    scores: tuple[ScoreRow, ...]
    """The first of a task is its main one."""
    members: dict[str, tuple[str, ...]]
    """Tasks of each group."""
    parts: dict[str, dict[str, dict[str, tuple[float, float, float, int]]]]
    """Mean, low, high, items: by task, tag|language, name."""
    contamination: dict[str, dict[str, float | int | None]]
    cut: int
    """Requests whose beginning did not fit the model."""

    def main(self, task: str, metric: str | None = None) -> ScoreRow:
        """Raises KeyError: it was not evaluated."""
        for row in self.scores:
            if row.task == task and metric in (None, row.metric):
                return row
        raise KeyError(task)


@dataclass(frozen=True, slots=True)
class EvaluationFolder:
    """Paths, and the files as types."""

    root: Path

    @property
    def answers(self) -> Path:
        return self.root / "answers.jsonl"

    @property
    def items(self) -> Path:
        return self.root / "items.jsonl"

    @property
    def result(self) -> Path:
        return self.root / RESULT

    def begin(self, request: Request) -> None:
        """Makes the folder, or finds it with the same request.

        Raises:
            RefusedInput: it belongs to another one.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / "request.json"
        if not path.exists():
            write_whole(path, to_json(request.model_dump(mode="json", by_alias=True)))
        elif (known := self.request()).settings != request.settings or known.weights != request.weights:
            raise RefusedInput(f"{self.root} holds an evaluation of other weights or settings: choose another --out")

    def request(self) -> Request:
        """Raises RefusedInput: there is none, or it is damaged."""
        return _read(self.root / "request.json", Request)

    def read(self) -> Result | None:
        """The result; None = not evaluated to the end.

        Raises:
            RefusedInput: it is damaged.
        """
        return _read(self.result, Result) if self.result.exists() else None

    def write(self, result: Result, items: list[Item]) -> None:
        lines = [
            json.dumps({"task": i.task, "key": i.key, "values": i.values, "tags": i.tags, "language": i.language})
            for i in items
        ]
        write_whole(self.items, ("\n".join(lines) + "\n").encode())
        write_whole(self.result, to_json(result.model_dump(mode="json", by_alias=True)))

    def read_items(self) -> list[Item]:
        return [
            Item(
                task=row["task"],
                key=row["key"],
                values={name: (float(v), float(w)) for name, (v, w) in row["values"].items()},
                tags=tuple(row["tags"]),
                language=row["language"],
            )
            for row in rows(self.items)
        ]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Raises RefusedInput: another process works on it."""
        with (self.root / "lock").open("ab") as file:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except OSError as error:
                raise RefusedInput(f"another process evaluates in {self.root}") from error
            yield


def as_row(task: str, metric: str, mean: float, interval: Interval | None) -> ScoreRow:
    low, high, count = (None, None, None) if interval is None else (interval.low, interval.high, interval.count)
    return ScoreRow(task=task, metric=metric, mean=mean, low=low, high=high, count=count)


def _read(path: Path, model: type[T]) -> T:
    try:
        return model.model_validate_json(read_bytes(path))
    except FileNotFoundError as error:
        raise RefusedInput(f"{path.parent} holds no evaluation") from error
    except (Unreadable, ValidationError) as error:
        raise RefusedInput(f"{path} is damaged, or of another release") from error
