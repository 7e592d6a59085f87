"""Where a run stands, read from its folder alone: any machine that sees the folder can tell. No file is read whole."""

from __future__ import annotations

import json
import os
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from colosseum.bundle import MANIFEST, PLAN
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
    from_step: int
    """The checkpoint it went on from."""
    last_step: int | None
    """The last step it trained; None = none."""
    lost_steps: int | None
    """Steps that the next attempt had to train again; None of the last attempt."""
    kind: str | None
    """Of outcome.json; None while it runs, or if nobody was left to write one."""
    retry: bool
    rank: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The newest figures of a run; None = not known (yet)."""

    step: int
    """0 = no step yet."""
    total_steps: int | None
    loss: float | None
    mfu: float | None
    tokens_per_s: float | None
    step_time_s: float | None
    predicted_step_time_s: float | None
    left_s: float | None
    """To the last step at the present speed."""
    saved_step: int
    """0 = no checkpoint yet."""
    saved_unix_s: float | None
    heard_unix_s: float | None
    """Time of the last row of metrics.jsonl."""


def standing(run: RunDir) -> Standing:
    """Reads the end of metrics.jsonl, the manifest, the plan and the names of the checkpoints."""
    rows = _tail(run.metrics)
    newest = max((row.get("attempt", 0) for row in rows), default=0)
    train = [r for r in rows if r.get("kind") == "train" and r.get("attempt", 0) == newest][-RECENT_STEPS:]
    last = train[-1] if train else {}
    step, total = int(last.get("step", 0)), _object(run.bundle / MANIFEST).get("total_steps")
    step_time_s = _figure(statistics.median, train, "step_time_s")
    saved = _newest_saved(run.checkpoints)
    return Standing(
        step=step,
        total_steps=total,
        loss=last.get("loss"),
        mfu=_figure(statistics.fmean, train, "mfu"),
        tokens_per_s=_figure(statistics.median, train, "tokens_per_s"),
        step_time_s=step_time_s,
        predicted_step_time_s=_object(run.bundle / PLAN).get("step_time_s"),
        left_s=None if step_time_s is None or total is None else max(0, total - step) * step_time_s,
        saved_step=saved,
        saved_unix_s=_modified(checkpoint_folder(run.checkpoints, saved) / CHECKPOINT_MARK) if saved else None,
        heard_unix_s=rows[-1].get("time_unix_s") if rows else None,
    )


def last_val_loss(run: RunDir) -> float | None:
    """Loss of the newest validation; reads the whole metrics.jsonl, but parses few of its lines."""
    newest: dict[str, Any] = {}
    with suppress(OSError), run.metrics.open("rb") as file:
        for line in file:
            if b'"val"' in line:
                with suppress(ValueError):  # torn
                    row = json.loads(line)
                    newest = row if row.get("kind") == "val" else newest
    return _figure(statistics.fmean, [newest], "loss")


def last_attempt(run: RunDir) -> Attempt | None:
    """The newest attempt, without its steps."""
    numbers = run.attempt_numbers()
    return _attempt(run, numbers[-1]) if numbers else None


def history(run: RunDir) -> list[Attempt]:
    """All attempts, with the steps that each trained and lost; reads the whole metrics.jsonl."""
    reached: dict[int, int] = {}
    loaded: dict[int, int] = {}
    for row in read_lines(run.metrics):
        number, step = row.get("attempt", 0), row.get("step")
        if row.get("kind") == "train" and isinstance(step, int):
            reached[number] = max(reached.get(number, 0), step)
        elif row.get("kind") == "load" and isinstance(step, int):
            loaded[number] = step
    attempts = [_attempt(run, number) for number in run.attempt_numbers()]
    # The job script goes by the newest mark; the runtime passes a damaged checkpoint over.
    attempts = [
        replace(a, from_step=loaded.get(a.number, a.from_step), last_step=reached.get(a.number)) for a in attempts
    ]
    for i, (attempt, after) in enumerate(pairwise(attempts)):
        last = attempt.from_step if attempt.last_step is None else attempt.last_step
        attempts[i] = replace(attempt, lost_steps=max(0, last - after.from_step))
    return attempts


def age_s(unix_s: float | None) -> float | None:
    """Seconds since; a clock that is ahead of ours makes 0."""
    return None if unix_s is None else max(0.0, time.time() - unix_s)


def _attempt(run: RunDir, number: int) -> Attempt:
    """What env.json and outcome.json say."""
    env, outcome = _object(run.attempt(number).env), run.attempt(number).read_outcome() or {}
    return Attempt(
        number=number,
        job_id=str(env.get("job_id", "")),
        nodes=str(env.get("nodes", "")),
        began_unix_s=env.get("time_unix_s"),
        from_step=int(env.get("saved_step") or 0),
        last_step=None,
        lost_steps=None,
        kind=outcome.get("kind"),
        retry=bool(outcome.get("retry")),
        rank=outcome.get("rank"),
        reason=str(outcome.get("reason", "")),
    )


def _newest_saved(checkpoints: Path) -> int:
    """The highest step with a finished checkpoint, 0 = none; looks into the newest folder only, if that is finished."""
    try:
        with os.scandir(checkpoints) as found:
            names = [entry.name for entry in found]
    except OSError:
        return 0
    steps = sorted((int(n[5:]) for n in names if n.startswith("iter_") and n[5:].isdigit()), reverse=True)
    return next((s for s in steps if (checkpoint_folder(checkpoints, s) / CHECKPOINT_MARK).is_file()), 0)


def _tail(path: Path) -> list[dict[str, Any]]:
    """The last rows of a file of JSON lines."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read()
    except OSError:
        return []
    rows = []
    for line in text.splitlines()[-TAIL_LINES:]:
        with suppress(ValueError):  # the first may be cut, the last torn
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def _object(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is none."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _figure(how: Any, rows: list[dict[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if isinstance(row.get(key), int | float)]
    return float(how(values)) if values else None


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
