"""``gate:`` of a campaign's stage: what scores the checkpoint must have that the stage begins from.

    gate: {ifeval: ">= parent - 1pt", "mmlu:acc": ">= 80%", val_loss: "<= parent + 0.02"}

A score is a task, or TASK:METRIC, of an evaluation of that very checkpoint (`colosseum evaluate`); ``val_loss`` is the
newest validation loss of its run up to its step. ``parent`` is the same figure of the checkpoint that its run began
from.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from colosseum.errors import Fault, RefusedInput
from colosseum.evaluation.folder import RESULT, EvaluationFolder, Result, ScoreRow
from colosseum.reading import Unreadable, read_object
from colosseum.rundir import CHECKPOINT_MARK, RunDir, checkpoint_folder, latest_rows

VAL_LOSS = "val_loss"
SCHEMA = "colosseum.gate-conditions/1"
_FORM = re.compile(r"\s*(>=|<=)\s*(?:(parent)\s*(?:([+-])\s*(\d+(?:\.\d+)?)\s*(pt)?)?|(\d+(?:\.\d+)?)\s*(%)?)\s*")
_COMPARE = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One entry of ``gate:``."""

    name: str
    text: str
    sign: str
    """>= or <=."""
    of_parent: bool
    amount: float
    """The limit, or what is added to the parent's figure."""

    def limit(self, parent: float | None) -> float:
        return self.amount + (parent or 0.0 if self.of_parent else 0.0)

    def holds(self, value: float, parent: float | None) -> bool:
        rounding = 1e-12 if self.sign == ">=" else -1e-12
        return bool(_COMPARE[self.sign](value + rounding, self.limit(parent)))


@dataclass(frozen=True, slots=True)
class At:
    """A checkpoint."""

    run: RunDir
    step: int

    @property
    def name(self) -> str:
        return f"{self.run.root.resolve().name}@{self.step}"


def parse(name: str, text: str, where: str) -> Condition:
    """Raises RefusedInput: it is no condition."""
    found = _FORM.fullmatch(text)
    if found is None or (found[5] and name == VAL_LOSS):
        rule = "a condition is >= or <=, then a number, or parent ± number; scores take % and pt (percentage points)"
        nearest = ("<= parent + 0.02",) if name == VAL_LOSS else (">= parent - 1pt", ">= 80%")
        raise RefusedInput([Fault(path=f"gate.{name}", value=text, rule=rule, nearest=nearest, where=where)])
    sign, parent, plus, shift, points, plain, percent = found.groups()
    if parent:
        amount = float(shift or 0) / (100 if points else 1) * (-1 if plus == "-" else 1)
    else:
        amount = float(plain) / (100 if percent else 1)
    return Condition(name=name, text=text.strip(), sign=sign, of_parent=bool(parent), amount=amount)


def read_conditions(run: RunDir) -> list[Condition]:
    """Of the stage that a run is; a run without a file has none.

    Raises:
        RefusedInput: the file is damaged.
    """
    try:
        found = read_object(run.gate_conditions).get("conditions")
    except FileNotFoundError:
        return []
    except Unreadable as error:
        raise RefusedInput(str(error)) from error
    if not isinstance(found, dict):
        raise RefusedInput(f"{run.gate_conditions.name} is damaged")
    return [parse(str(name), str(text), run.gate_conditions.name) for name, text in found.items()]


def judged(conditions: list[Condition], at: At, parent: At | None) -> tuple[list[str], list[str]]:
    """A sentence with the figures for each condition that fails, and for each that holds."""
    faults: list[str] = []
    notes: list[str] = []
    for condition in conditions:
        if condition.of_parent and parent is None:
            faults.append(f"gate {condition.name} {condition.text}: {at.name} began from no checkpoint of a run")
            continue
        try:
            value, shown = _figure(condition.name, at)
            its, its_shown = _figure(condition.name, parent) if condition.of_parent and parent else (None, "")
        except _Missing as missing:
            faults.append(f"gate {condition.name} {condition.text}: {missing}")
            continue
        passed = condition.holds(value, its)
        beside = f", parent {its_shown}" if its_shown else ""
        limit = _shown(condition.name, condition.limit(its))
        verdict = "holds" if passed else "fails"
        sentence = f"gate {condition.name} {condition.text} {verdict}: {shown}{beside}; limit {limit}"
        (notes if passed else faults).append(sentence)
    return faults, notes


class _Missing(Exception):
    """A figure that is not there; the message says how to get it."""


def _figure(name: str, at: At) -> tuple[float, str]:
    """A figure of a checkpoint, and as it is shown."""
    if name == VAL_LOSS:
        rows = [row for row in latest_rows(at.run.metrics, "val") if row["step"] <= at.step]
        if not rows or not isinstance(rows[-1].get("loss"), int | float):
            raise _Missing(f"{at.name} has no validation loss")
        loss = float(rows[-1]["loss"])
        return loss, f"{at.name} {loss:.4f} (step {rows[-1]['step']:,})"
    score = _score(name, at)
    interval = "" if score.low is None or score.high is None else f" ({score.low:.2%} to {score.high:.2%})"
    return score.mean, f"{at.name} {score.mean:.2%}{interval}"


def _score(name: str, at: At) -> ScoreRow:
    """The newest evaluation of the checkpoint's weights that has the task."""
    task, _, metric = name.partition(":")
    for result in _results(at):
        try:
            return result.main(task, metric or None)
        except KeyError:
            continue
    how = f"colosseum evaluate {at.name} --tasks {task}, then resume the campaign"
    raise _Missing(f"{at.name} was not evaluated: {how}")


def _results(at: At) -> list[Result]:
    """Finished evaluations of the checkpoint, the newest first."""
    mark = checkpoint_folder(at.run.checkpoints, at.step) / CHECKPOINT_MARK
    weights = hashlib.sha256(mark.read_bytes()).hexdigest()
    files = sorted(at.run.evaluations.glob(f"*/{RESULT}"), key=lambda p: -p.stat().st_mtime)
    found = []
    for file in files:
        try:
            result = EvaluationFolder(file.parent).read()
        except RefusedInput:
            continue
        if result is not None and result.weights == weights:
            found.append(result)
    return found


def _shown(name: str, value: float) -> str:
    return f"{value:.4f}" if name == VAL_LOSS else f"{value:.2%}"


def as_file(conditions: Mapping[str, str]) -> dict[str, object]:
    """gate-conditions.json."""
    return {"schema": SCHEMA, "conditions": dict(conditions)}
