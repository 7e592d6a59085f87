"""The status of a run, read from its folder alone, on any machine that sees the folder. No file is read whole."""

from __future__ import annotations

import os
import re
import statistics
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from colosseum.bundle import MANIFEST, PLAN
from colosseum.reading import Unreadable, read_bytes, read_object, tail
from colosseum.records import AttemptEnvironment, number, parse_object, whole
from colosseum.rundir import CHECKPOINT_MARK, RunDir, checkpoint_folder, read_lines

TAIL_BYTES, TAIL_LINES = 1 << 15, 25
RECENT_STEPS = 20
"""Speed is the median, MFU the mean, of so many steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a run's job."""

    number: int
    job_id: str
    nodes: str
    began_unix_s: float | None
    ended_unix_s: float | None
    """When outcome.json was written; None if there is none."""
    from_step: int
    """The checkpoint that it resumed from; 0 = none."""
    last_step: int | None
    """The last step it trained; None = none."""
    lost_steps: int | None
    """Steps that the next attempt had to train again; None = no attempt has begun since."""
    kind: str | None
    """Of outcome.json; None while it runs, or if nobody was left to write one."""
    retry: bool
    rank: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The newest metrics of a run; None = not known (yet)."""

    step: int
    """0 = no step yet."""
    total_steps: int | None
    loss: float | None
    mfu: float | None
    tokens_per_s: float | None
    step_time_s: float | None
    predicted_step_time_s: float | None
    left_s: float | None
    """Time to the last step at the current speed."""
    saved_step: int
    """0 = no checkpoint yet."""
    saved_unix_s: float | None
    heard_unix_s: float | None
    """Time of the last row of metrics.jsonl."""

    @property
    def steps_text(self) -> str:
        """``1,200/5,000``; empty before the first step."""
        if not self.step:
            return ""
        return f"{self.step:,}" + (f"/{self.total_steps:,}" if self.total_steps else "")


UNKNOWN = RunStatus(
    step=0,
    total_steps=None,
    loss=None,
    mfu=None,
    tokens_per_s=None,
    step_time_s=None,
    predicted_step_time_s=None,
    left_s=None,
    saved_step=0,
    saved_unix_s=None,
    heard_unix_s=None,
)
"""The status of a run that cannot be read."""


def run_status(run: RunDir) -> RunStatus:
    """Reads the end of metrics.jsonl, the manifest, the plan and the names of the checkpoints."""
    rows = _tail(run.metrics)
    newest = max((whole(row.get("attempt")) or 0 for row in rows), default=0)
    train = [r for r in rows if r.get("kind") == "train" and (whole(r.get("attempt")) or 0) == newest]
    train = [r for r in train if whole(r.get("step")) is not None][-RECENT_STEPS:]
    last = train[-1] if train else {}
    step, total = whole(last.get("step")) or 0, whole(_object(run.bundle / MANIFEST).get("total_steps"))
    step_time_s = _figure(statistics.median, train, "step_time_s")
    saved = _newest_saved(run.checkpoints)
    return RunStatus(
        step=step,
        total_steps=total,
        loss=number(last.get("loss")),
        mfu=_figure(statistics.fmean, train, "mfu"),
        tokens_per_s=_figure(statistics.median, train, "tokens_per_s"),
        step_time_s=step_time_s,
        predicted_step_time_s=number(_object(run.bundle / PLAN).get("step_time_s")) or None,
        left_s=None if step_time_s is None or total is None else max(0, total - step) * step_time_s,
        saved_step=saved,
        saved_unix_s=_modified(checkpoint_folder(run.checkpoints, saved) / CHECKPOINT_MARK) if saved else None,
        heard_unix_s=number(rows[-1].get("time_unix_s")) if rows else None,
    )


def last_val_loss(run: RunDir) -> float | None:
    """Loss of the newest validation; reads the whole metrics.jsonl, but parses few of its lines."""
    newest: dict[str, Any] = {}
    for row in read_lines(run.metrics, holding=b'"val"'):
        newest = row if row.get("kind") == "val" else newest
    return number(newest.get("loss"))


def last_attempt(run: RunDir) -> Attempt | None:
    """The newest attempt, without its steps."""
    numbers = run.attempt_numbers()
    return _attempt(run, numbers[-1]) if numbers else None


def attempts_of(run: RunDir) -> list[Attempt]:
    """All attempts, without their steps."""
    return [_attempt(run, n) for n in run.attempt_numbers()]


def history(run: RunDir) -> list[Attempt]:
    """All attempts, with the steps that each trained and lost; reads the whole metrics.jsonl."""
    reached: dict[int, int] = {}
    loaded: dict[int, int] = {}
    for row in read_lines(run.metrics):
        attempt_number, step = whole(row.get("attempt")) or 0, whole(row.get("step"))
        if row.get("kind") == "train" and step is not None:
            reached[attempt_number] = max(reached.get(attempt_number, 0), step)
        elif row.get("kind") == "load" and step is not None:
            loaded[attempt_number] = step
    return with_steps(attempts_of(run), reached, loaded)


def with_steps(attempts: list[Attempt], reached: dict[int, int], loaded: dict[int, int]) -> list[Attempt]:
    """The attempts with the steps that each trained and lost.

    Args:
        reached: last step by attempt.
        loaded: step of the checkpoint that it loaded.
    """
    # The job script goes by the newest mark; the runtime passes a damaged checkpoint over.
    attempts = [
        replace(a, from_step=loaded.get(a.number, a.from_step), last_step=reached.get(a.number)) for a in attempts
    ]
    # A folder without env.json is an attempt that has not begun yet, or never did: it says nothing of any step.
    begun = [a for a in attempts if a.began_unix_s is not None or a.number in loaded]
    lost: dict[int, int] = {}
    for attempt, after in pairwise(begun):
        last = attempt.from_step if attempt.last_step is None else attempt.last_step
        lost[attempt.number] = max(0, last - after.from_step)
    return [replace(attempt, lost_steps=lost.get(attempt.number)) for attempt in attempts]


def age_s(unix_s: float | None) -> float | None:
    """Seconds since; a clock that is ahead of ours makes 0."""
    return None if unix_s is None else max(0.0, time.time() - unix_s)


def _attempt(run: RunDir, n: int) -> Attempt:
    """What env.json and outcome.json say."""
    env, outcome = _environment(run.attempt(n).env), run.attempt(n).read_outcome()
    return Attempt(
        number=n,
        job_id=env.job_id if env else "",
        nodes=env.nodes if env else "",
        began_unix_s=env.time_unix_s if env else None,
        ended_unix_s=_modified(run.attempt(n).outcome) if outcome else None,
        from_step=env.saved_step if env else 0,
        last_step=None,
        lost_steps=None,
        kind=outcome.kind if outcome else None,
        retry=outcome is not None and outcome.retry,
        rank=outcome.rank if outcome else None,
        reason=outcome.reason if outcome else "",
    )


def _environment(path: Path) -> AttemptEnvironment | None:
    try:
        return AttemptEnvironment.from_line(read_bytes(path))
    except (FileNotFoundError, Unreadable):
        return None


def _newest_saved(checkpoints: Path) -> int:
    """The highest step with a finished checkpoint, 0 = none; looks into the newest folder only, if that is finished."""
    try:
        with os.scandir(checkpoints) as found:
            names = [entry.name for entry in found]
    except OSError:
        return 0
    steps = sorted((int(n[5:]) for n in names if re.fullmatch(r"iter_[0-9]{1,15}", n)), reverse=True)
    return next((s for s in steps if (checkpoint_folder(checkpoints, s) / CHECKPOINT_MARK).is_file()), 0)


def _tail(path: Path) -> list[dict[str, Any]]:
    """The last rows of a file of JSON lines; the first may be cut off, the last incomplete."""
    rows = (parse_object(line) for line in tail(path, TAIL_BYTES)[-TAIL_LINES:])
    return [row for row in rows if row is not None]


def _object(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is none that can be read."""
    try:
        return read_object(path)
    except (FileNotFoundError, Unreadable):
        return {}


def _figure(how: Any, rows: list[dict[str, Any]], key: str) -> float | None:
    values = [value for row in rows if (value := number(row.get(key))) is not None]
    return float(how(values)) if values else None


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
