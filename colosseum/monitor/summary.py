"""The figures of runs side by side (a row a figure, a column a run), and where the time of each went, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from rich.console import RenderableType

from colosseum.console import columns, facts
from colosseum.monitor.contents import Contents
from colosseum.monitor.goodput import CAUSES
from colosseum.monitor.series import Column
from colosseum.records import number
from colosseum.units import format_count, format_duration

AVERAGED_STEPS = 10
"""The last loss is the mean of so many."""


def summary_rows(runs: Sequence[Contents]) -> list[tuple[str, ...]]:
    """Name and texts; rows that no run has are left out."""
    rows: dict[str, Callable[[Contents], str]] = {
        "run": lambda one: one.run.root.resolve().name,
        "ended": _ended,
        "step": _step,
        "loss": lambda one: _figure(one, "loss", _last_mean, "{:.4f}"),
        "validation loss": _validation,
        "tokens": lambda one: _figure(one, "consumed_tokens", _highest, format_count),
        "step time": lambda one: _beside(_median(one, "step_time_s"), one.predicted.step_time_s, "{:.3g} s"),
        "tokens/s": lambda one: _figure(one, "tokens_per_s", _middle, "{:,.0f}"),
        "MFU": lambda one: _beside(_median(one, "mfu"), one.predicted.mfu, "{:.1%}"),
        "goodput": lambda one: _beside(one.goodput.share, one.predicted.goodput, "{:.1%}"),
        "wall time": lambda one: format_duration(one.goodput.wall_s) if one.goodput.wall_s else "",
        "restarts": lambda one: str(len(one.goodput.restarts)) if one.attempts else "",
    }
    found = [(name, *(text(one) for one in runs)) for name, text in rows.items()]
    return [row for row in found if any(row[1:])]


def summary_text(runs: Sequence[Contents]) -> list[RenderableType]:
    """``summary_rows``, and the lost time of each run by cause, longest first."""
    rows = summary_rows(runs)
    parts: list[RenderableType] = [columns(rows) if len(runs) > 1 else facts((row[0], row[1]) for row in rows)]
    for one in runs:
        lost = [(name, s) for name, s in one.goodput.seconds.items() if name != "training" and s > 0]
        if lost:
            parts.append("\nlost time" + (f" of {one.run.root.resolve().name}" if len(runs) > 1 else ""))
            lost.sort(key=lambda pair: -pair[1])
            shares = [(name, format_duration(s), f"{s / one.goodput.wall_s:.1%}", CAUSES[name]) for name, s in lost]
            parts.append(columns(shares))
    return parts


def _ended(one: Contents) -> str:
    if not one.attempts:
        return "not started"
    last = one.attempts[-1]
    return last.kind.replace("_", " ") if last.kind else "running, or wrote no outcome.json"


def _step(one: Contents) -> str:
    steps = one.metrics.train["step"]
    if not steps.size:
        return ""
    return f"{int(steps[-1]):,}" + (f" of {one.total_steps:,}" if one.total_steps else "")


def _validation(one: Contents) -> str:
    losses = [loss for row in one.metrics.of_kind("val") if (loss := number(row.get("loss"))) is not None]
    return f"{losses[-1]:.4f}" if losses else ""


def _known(one: Contents, name: str) -> Column:
    values = one.metrics.train[name][one.metrics.kept()]
    return values[np.isfinite(values)]


def _median(one: Contents, name: str) -> float | None:
    values = _known(one, name)
    return float(np.median(values)) if values.size else None


def _figure(one: Contents, name: str, how: Callable[[Column], float], form: str | Callable[[float], str]) -> str:
    values = _known(one, name)
    if not values.size:
        return ""
    found = float(how(values))
    return form.format(found) if isinstance(form, str) else form(found)


def _highest(values: Column) -> float:
    return float(values.max())


def _middle(values: Column) -> float:
    return float(np.median(values))


def _last_mean(values: Column) -> float:
    return float(values[-AVERAGED_STEPS:].mean())


def _beside(measured: float | None, planned: float | None, form: str) -> str:
    if measured is None:
        return ""
    return form.format(measured) + (f" (plan: {form.format(planned)})" if planned is not None else "")
