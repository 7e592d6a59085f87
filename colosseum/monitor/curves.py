"""The charts of a report: which figures of which runs, over what, beside which of the plan's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from colosseum.monitor.chart import Band, Chart, Line
from colosseum.monitor.contents import Contents
from colosseum.monitor.series import Column
from colosseum.records import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart, and the sentence below it."""

    chart: Chart
    note: str = ""


def loss(runs: Sequence[Contents]) -> Figure:
    """Training and validation loss of the rows that count."""
    lines = []
    for place, one in enumerate(runs):
        lines.append(_by_step(one, "loss", place))
        rows = [row for row in one.metrics.of_kind("val") if number(row.get("loss")) is not None]
        if rows:
            x, y = (np.array([float(row[name]) for row in rows]) for name in ("step", "loss"))
            lines.append(Line(name=f"validation, {_name(one)}", x=x, y=y, colour=place, points=True))
    return Figure(chart=Chart(title="Loss", x_name="step", lines=lines), note="nats per token; dots: validation")


def figures(runs: Sequence[Contents]) -> list[Figure]:
    """All charts."""
    return [
        loss(runs),
        _mfu(runs),
        _step_time(runs),
        _plain(runs, "tokens_per_s", "Tokens per second", zero=True),
        _plain(runs, "grad_norm", "Gradient norm"),
        _plain(runs, "lr", "Learning rate", zero=True),
    ]


def _mfu(runs: Sequence[Contents]) -> Figure:
    """Over time, so that restarts are seen; without a GPU the speed stands in its place."""
    known = any(np.isfinite(one.metrics.train["mfu"]).any() for one in runs)
    name, title = ("mfu", "MFU over time") if known else ("tokens_per_s", "Tokens per second over time")
    unit, unit_s = _unit_of_time(runs)
    lines, marks, bands = [], [], []
    for place, one in enumerate(runs):
        times = one.metrics.train["time_unix_s"]
        if not np.isfinite(times).any():
            continue
        zero = min([float(np.nanmin(times)), *(a.began_unix_s for a in one.attempts if a.began_unix_s is not None)])
        places, values = _with_gaps((times - zero) / unit_s, one.metrics.train[name], one.metrics.train["attempt"])
        lines.append(Line(name=_name(one), x=places, y=values, colour=place))
        if len(runs) == 1:
            later = [a for a in one.attempts[1:] if a.began_unix_s is not None]
            marks = [(((a.began_unix_s or zero) - zero) / unit_s, f"attempt {a.number} started") for a in later]
        if known and (bounds := one.predicted.mfu_range) is not None:
            low, high = bounds
            bands.append(Band(name=f"the plan's MFU, {_name(one)}", low=low, high=high, colour=place))
    note = "shaded: the plan's range. " if bands else ""
    note += "Dotted: a restart." if len(runs) == 1 else ""
    chart = Chart(title=title, x_name=unit, lines=lines, bands=bands, marks=marks, percent=known, zero=True)
    return Figure(chart=chart, note=note.strip())


def _unit_of_time(runs: Sequence[Contents]) -> tuple[str, float]:
    """Of the time axis: its name and seconds."""
    longest_s = max(one.goodput.wall_s + one.goodput.stopped_s for one in runs)
    return ("minutes", 60) if longest_s < 2 * 3600 else ("hours", 3600) if longest_s < 5 * 86400 else ("days", 86400)


def _step_time(runs: Sequence[Contents]) -> Figure:
    bands = [
        Band(name=f"the plan's range, {_name(one)}", low=reach[0], high=reach[1], colour=place)
        for place, one in enumerate(runs)
        if (reach := one.predicted.step_time_range_s)
    ]
    lines = [_by_step(one, "step_time_s", place) for place, one in enumerate(runs)]
    note = "seconds" + ("; shaded: the plan's range" if bands else "")
    return Figure(chart=Chart(title="Step time", x_name="step", lines=lines, bands=bands), note=note)


def _plain(runs: Sequence[Contents], name: str, title: str, *, zero: bool = False) -> Figure:
    lines = [_by_step(one, name, place) for place, one in enumerate(runs)]
    return Figure(chart=Chart(title=title, x_name="step", lines=lines, zero=zero))


def _by_step(one: Contents, name: str, place: int) -> Line:
    kept = one.metrics.kept()
    return Line(name=_name(one), x=one.metrics.train["step"][kept], y=one.metrics.train[name][kept], colour=place)


def _with_gaps(x: Column, y: Column, attempt: Column) -> tuple[Column, Column]:
    """A line that is interrupted between attempts."""
    places = np.nonzero(np.diff(attempt))[0] + 1
    return np.insert(x, places, x[places]), np.insert(y, places, np.nan)


def _name(one: Contents) -> str:
    return one.run.root.resolve().name
