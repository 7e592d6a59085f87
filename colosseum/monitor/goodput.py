"""Goodput: the share of a run's wall time that trained new steps, and where the rest of it went.

The clock runs from the first submission to the last sign of the run; time in which no job of the run existed (it was
stopped, and nobody had submitted it again) is not counted. Sources: submissions.jsonl, the attempts' env.json and
outcome.json, metrics.jsonl.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from colosseum.monitor.series import Column, Metrics, read_metrics
from colosseum.monitor.watch import Attempt, attempts_of
from colosseum.records import number, whole
from colosseum.rundir import RunDir, read_lines

CAUSES = {
    "training": "steps that count",
    "queue": "waiting for the scheduler after a submission",
    "start": "from the start of a job to its first step: container, imports, building the model",
    "load": "loading checkpoints",
    "restart": "from the last step of an attempt that failed to the start of the next attempt",
    "recomputed": "steps that a later attempt, or a rewind, trained again",
    "data": "waiting for data",
    "stragglers": "waiting for ranks that were slower than the median",
    "validation": "validation",
    "save": "saving checkpoints, as far as training waited for it",
    "other": "between steps, and the end of attempts",
}
"""Every second of the clock has one of these."""
STRAGGLER_RATIO = 1.2
"""A step counts as delayed by a straggler if its slowest rank took so many times the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """From the last step of an attempt to the first new step of the next one, in seconds; None = not known."""

    attempt: int
    """The one that begins."""
    kind: str
    """How the one before ended."""
    noticed_s: float
    """From the last step to the end of the attempt: the failure is noticed, the ranks are ended."""
    requeue_s: float
    """From there to the start of the next attempt."""
    start_s: float | None
    load_s: float | None
    recomputed_s: float | None
    """Steps that had been trained before."""
    total_s: float | None
    """To the end of the first new step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Seconds of a run's wall time by cause."""

    seconds: dict[str, float] = field(default_factory=dict)
    """By the names in CAUSES; they add up to ``wall_s``."""
    stopped_s: float = 0.0
    """No job existed; not counted."""
    restarts: tuple[Restart, ...] = ()

    @property
    def wall_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def share(self) -> float | None:
        """Goodput; None = nothing was measured yet."""
        return self.seconds["training"] / self.wall_s if self.wall_s > 0 else None

    def as_json(self) -> dict[str, Any]:
        parts = {f"{name}_s": value for name, value in self.seconds.items()}
        names = Restart.__dataclass_fields__
        restarts = [{name: getattr(restart, name) for name in names} for restart in self.restarts]
        return {
            "goodput": self.share,
            "wall_s": self.wall_s,
            **parts,
            "stopped_s": self.stopped_s,
            "restarts": restarts,
        }


def goodput_of(run: RunDir, metrics: Metrics | None = None) -> Goodput:
    """Reads the run folder; ``metrics`` if they were read already."""
    submitted = [number(row.get("time_unix_s")) for row in read_lines(run.submissions)]
    times = sorted(time for time in submitted if time is not None)
    return goodput(metrics or read_metrics(run.metrics), attempts_of(run), times)


def goodput(metrics: Metrics, attempts: Sequence[Attempt], submitted_unix_s: Sequence[float]) -> Goodput:
    """Divides the wall time of a run among CAUSES.

    Args:
        attempts: in order.
        submitted_unix_s: ascending.
    """
    parts = [_Part.of(metrics, attempt) for attempt in attempts]
    parts = [part for part in parts if part.began_s is not None]
    seconds = dict.fromkeys(CAUSES, 0.0)
    if not parts:
        return Goodput(seconds=seconds)
    kept = metrics.kept()
    stopped_s = 0.0
    before = next((time for time in submitted_unix_s if time <= parts[0].began), parts[0].began)
    seconds["queue"] += parts[0].began - before
    for part in parts:
        _first_step(seconds, metrics, part, kept)
        _steps(seconds, metrics, part, kept)
        _ending(seconds, part)
    restarts = []
    for one, after in pairwise(parts):
        gap = max(0.0, after.began - one.ended)
        again = next((time for time in submitted_unix_s if one.ended <= time <= after.began), None)
        if again is None:
            seconds["restart"] += gap
        else:
            stopped_s += again - one.ended
            seconds["queue"] += after.began - again
        restarts.append(_restart(metrics, one, after))
    return Goodput(seconds=seconds, stopped_s=stopped_s, restarts=tuple(restarts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """An attempt and its rows."""

    attempt: Attempt
    began_s: float | None
    rows: slice
    """Of the training rows."""
    first_s: float | None
    """Time of its first training row; None = it trained no step."""
    last_s: float | None
    other: list[dict[str, Any]]

    @classmethod
    def of(cls, metrics: Metrics, attempt: Attempt) -> _Part:
        (places,) = np.nonzero(metrics.train["attempt"] == attempt.number)
        times = metrics.train["time_unix_s"][places]
        known = times[np.isfinite(times)]
        return cls(
            attempt=attempt,
            began_s=attempt.began_unix_s,
            rows=slice(int(places[0]), int(places[-1]) + 1) if places.size else slice(0, 0),
            first_s=float(known[0]) if known.size else None,
            last_s=float(known[-1]) if known.size else None,
            other=[row for row in metrics.other if (whole(row.get("attempt")) or 0) == attempt.number],
        )

    @property
    def began(self) -> float:
        assert self.began_s is not None
        return self.began_s

    @property
    def heard(self) -> float:
        """Its last sign in metrics.jsonl."""
        times = [number(row.get("time_unix_s")) for row in self.other[-1:]]
        return max(self.began, self.last_s or 0.0, *(time or 0.0 for time in times))

    @property
    def ended(self) -> float:
        """One that wrote no outcome.json ended with its last sign."""
        return max(self.heard, self.attempt.ended_unix_s or 0.0)

    @property
    def failed(self) -> bool:
        return self.attempt.kind not in ("completed", "saved")

    def total(self, kind: str, after: float, until: float) -> float:
        """Seconds of its rows of a kind that were written in between."""
        return sum(
            number(row.get("time_s")) or 0.0
            for row in self.other
            if row.get("kind") == kind and after < (number(row.get("time_unix_s")) or 0.0) <= until
        )


def _first_step(seconds: dict[str, float], metrics: Metrics, part: _Part, kept: Any) -> None:
    """From the start of an attempt to the end of its first step."""
    until = part.first_s if part.first_s is not None else part.ended
    left = max(0.0, until - part.began)
    load = min(left, part.total("load", -1.0, until))
    seconds["load"] += load
    left -= load
    if part.first_s is not None:
        step = min(left, float(np.nan_to_num(metrics.train["step_time_s"][part.rows.start])))
        seconds["training" if kept[part.rows.start] else "recomputed"] += step
        left -= step
    seconds["start" if part.first_s is not None or not part.failed else "restart"] += left


def _steps(seconds: dict[str, float], metrics: Metrics, part: _Part, kept: Any) -> None:
    """Between the first and the last training row of an attempt, from row to row."""
    rows = {name: column[part.rows] for name, column in metrics.train.items()}
    if rows["step"].size < 2:
        return
    times = _filled(rows["time_unix_s"])
    passed = np.maximum(np.diff(times), 0.0)
    count = np.maximum(np.diff(rows["step"]), 1.0)
    pauses = {kind: _pauses(part, rows, times, kind) for kind in ("val", "save")}
    paused = np.maximum(0.0, passed - count * np.nan_to_num(rows["step_time_s"][1:], nan=np.inf))
    # Of rows that lie several steps apart only the last step's time is known: without a pause all of it was steps.
    paused[(count > 1) & (pauses["val"] == 0) & (pauses["save"] == 0)] = 0.0
    validation = np.minimum(paused, pauses["val"])
    save = np.where(pauses["save"] > 0, paused - validation, 0.0)
    trained, counts = passed - paused, kept[part.rows][1:]
    data = np.minimum(trained, count * np.nan_to_num(rows["data_time_s"][1:]))
    slow = np.minimum(trained - data, count * _delays(rows)[1:])
    seconds["validation"] += float(validation.sum())
    seconds["save"] += float(save.sum())
    seconds["other"] += float((paused - validation - save).sum())
    seconds["recomputed"] += float(trained[~counts].sum())
    seconds["data"] += float(data[counts].sum())
    seconds["stragglers"] += float(slow[counts].sum())
    seconds["training"] += float((trained - data - slow)[counts].sum())


def _pauses(part: _Part, rows: dict[str, Column], times: Column, kind: str) -> Column:
    """Seconds of validations or saves that began between two rows, by the interval.

    A validation is written when it ends. An asynchronous save is written later than training waited for it: it counts
    in the interval that follows its step.
    """
    found = np.zeros(times.size - 1)
    for row in part.other:
        if row.get("kind") != kind:
            continue
        place = int(np.searchsorted(times, number(row.get("time_unix_s")) or 0.0, side="left")) - 1
        while kind == "save" and place >= 0 and rows["step"][place] > row["step"]:
            place -= 1
        if 0 <= place < found.size:
            found[place] += number(row.get("time_s")) or 0.0
    return found


def _ending(seconds: dict[str, float], part: _Part) -> None:
    """From the last training row to the end of an attempt."""
    if part.last_s is None:
        return
    left = max(0.0, part.ended - part.last_s)
    for kind, cause in (("val", "validation"), ("save", "save")):
        spent = min(left, part.total(kind, part.last_s, part.ended))
        seconds[cause] += spent
        left -= spent
    seconds["restart" if part.failed else "other"] += left


def _restart(metrics: Metrics, before: _Part, after: _Part) -> Restart:
    """What passed between the last step of one attempt and the first new step of the next."""
    last_s = before.last_s if before.last_s is not None else before.began
    reached = metrics.train["step"][before.rows]
    start_s = load_s = recomputed_s = total_s = None
    if after.first_s is not None:
        load_s = after.total("load", -1.0, after.first_s)
        first_step = float(np.nan_to_num(metrics.train["step_time_s"][after.rows.start]))
        start_s = max(0.0, after.first_s - first_step - after.began - load_s)
        steps, times = metrics.train["step"][after.rows], metrics.train["time_unix_s"][after.rows]
        (new,) = np.nonzero(steps > (reached.max() if reached.size else 0))
        if new.size:
            total_s = float(times[new[0]]) - last_s
            recomputed_s = float(times[new[0] - 1]) - after.first_s + first_step if new[0] else 0.0
    return Restart(
        attempt=after.attempt.number,
        kind=before.attempt.kind or "wrote no outcome.json",
        noticed_s=max(0.0, before.ended - last_s),
        requeue_s=max(0.0, after.began - before.ended),
        start_s=start_s,
        load_s=load_s,
        recomputed_s=recomputed_s,
        total_s=total_s,
    )


def _delays(rows: dict[str, Column]) -> Column:
    """Seconds of each row's step that the slowest rank took above the median, where it was a straggler."""
    slowest, median = np.nan_to_num(rows["slowest_rank_s"]), np.nan_to_num(rows["median_rank_s"])
    return np.where(slowest > STRAGGLER_RATIO * median, slowest - median, 0.0)


def _filled(times: Column) -> Column:
    """Times that never go back; a missing one is that of the row before."""
    return np.maximum.accumulate(np.nan_to_num(times))
