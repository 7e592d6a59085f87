"""Line charts as SVG text: no script, no network; colours follow the reader's light or dark setting, and print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np

from colosseum.monitor.series import Column
from colosseum.units import format_count

POINTS = 600
"""Of a line: where there are more, the lowest and the highest of each part are drawn."""
COLOURS = 8
"""Classes c0 … c7 of the style."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 10, 34
STYLE = """
:root { --ink: #1c2430; --faint: #5f6b7a; --grid: #dde2e9; --c0: #1f5fa8; --c1: #c8501e; --c2: #2e8540;
  --c3: #7a3fa0; --c4: #0e7c86; --c5: #a8324a; --c6: #7d6608; --c7: #4a5568; color-scheme: light dark; }
svg.chart { width: 100%; height: auto;
  font: 11px system-ui, sans-serif; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --faint: #9aa5b4; --grid: #2d3642;
  --c0: #6aa9f4; --c1: #f08a5c; --c2: #6cc27f; --c3: #bf8fe0; --c4: #4fc3cf; --c5: #f07f95; --c6: #d3b845;
  --c7: #a0aec0; } }
svg.chart text { fill: var(--ink); }
svg.chart .tick { fill: var(--faint); }
svg.chart .grid { stroke: var(--grid); stroke-width: 1; fill: none; }
svg.chart .mark { stroke: var(--faint); stroke-width: 1; stroke-dasharray: 2 3; }
svg.chart .line { fill: none; stroke-width: 1.4; stroke-linejoin: round; }
svg.chart .band { fill-opacity: 0.14; stroke: none; }
svg.chart .level { stroke-width: 1.2; stroke-dasharray: 6 4; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Values by step or by hour."""

    name: str
    x: Column
    y: Column
    """NaN = no value: the line is interrupted."""
    colour: int = 0
    points: bool = False
    """Draw the values as dots, without a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A range to compare with; a line if both ends are the same."""

    name: str
    low: float
    high: float
    colour: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What one picture shows."""

    title: str
    x_name: str
    lines: Sequence[Line]
    bands: Sequence[Band] = ()
    marks: Sequence[tuple[float, str]] = ()
    """Places on the x axis, such as restarts, each with what happened there."""
    percent: bool = False
    zero: bool = False
    """The y axis begins at 0."""


def svg(chart: Chart, *, width: int = 720, height: int = 240, style: bool = False) -> str:
    """The picture; without lines a sentence in its place.

    Args:
        style: with its own style sheet, to stand alone as a file.
    """
    lines = [line for line in chart.lines if np.isfinite(line.y).any()]
    head = (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(chart.title)}">'
    )
    sheet = f"<style>{STYLE}</style>" if style else ""
    if not lines:
        empty = f'<text class="tick" x="{width / 2}" y="{height / 2}" text-anchor="middle">no values</text>'
        return f"{head}{sheet}{empty}</svg>"
    frame = _Frame.around(lines, chart, width, height)
    parts = [head, sheet, *_grid(frame, chart), *_behind(frame, chart)]
    parts += [_drawn(frame, line) for line in lines]
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Values to places in the picture."""

    low_x: float
    high_x: float
    low_y: float
    high_y: float
    width: int
    height: int

    @classmethod
    def around(cls, lines: Sequence[Line], chart: Chart, width: int, height: int) -> _Frame:
        """A frame for nearly all values: single ones far outside (a first step, a spike) are drawn at its edge."""
        values = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
        low, high = (float(v) for v in np.percentile(values, (0.5, 99.5)))
        spread = (high - low) or abs(high) * 0.1 or 1.0
        low, high = max(float(values.min()), low - spread), min(float(values.max()), high + spread)
        ends = [end for band in chart.bands for end in (band.low, band.high)]
        low, high = min([low, *ends]), max([high, *ends])
        margin = (high - low) * 0.05 or abs(high) * 0.05 or 0.5
        low_y = 0.0 if chart.zero else low - margin
        places = np.concatenate([line.x for line in lines])
        low_x, high_x = float(np.nanmin(places)), float(np.nanmax(places))
        high_x = high_x if high_x > low_x else low_x + 1
        return cls(low_x=low_x, high_x=high_x, low_y=low_y, high_y=high + margin, width=width, height=height)

    def x(self, value: Column | float) -> Column:
        share = (np.asarray(value, dtype=float) - self.low_x) / (self.high_x - self.low_x)
        return _LEFT + np.clip(share, 0, 1) * (self.width - _LEFT - _RIGHT)

    def y(self, value: Column | float) -> Column:
        share = (np.asarray(value, dtype=float) - self.low_y) / (self.high_y - self.low_y)
        return self.height - _BOTTOM - np.clip(share, 0, 1) * (self.height - _TOP - _BOTTOM)


def _grid(frame: _Frame, chart: Chart) -> list[str]:
    bottom, right = frame.height - _BOTTOM, frame.width - _RIGHT
    parts = []
    for value in ticks(frame.low_y, frame.high_y, 5):
        at = f"{float(frame.y(value)):.1f}"
        text = f"{100 * value:.3g}%" if chart.percent else _short(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {at}H{right}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{at}" dy="4" text-anchor="end">{text}</text>')
    for value in ticks(frame.low_x, frame.high_x, 8):
        at = f"{float(frame.x(value)):.1f}"
        parts.append(f'<text class="tick" x="{at}" y="{bottom + 15}" text-anchor="middle">{_short(value)}</text>')
    parts.append(f'<path class="grid" d="M{_LEFT} {bottom}H{right}"/>')
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text class="tick" x="{middle}" y="{frame.height - 4}" text-anchor="middle">{escape(chart.x_name)}</text>'
    )
    return parts


def _behind(frame: _Frame, chart: Chart) -> list[str]:
    """Bands and marks."""
    parts = []
    for band in chart.bands:
        top, bottom, colour = float(frame.y(band.high)), float(frame.y(band.low)), f"var(--c{band.colour % COLOURS})"
        title = f"<title>{escape(band.name)}</title>"
        if bottom - top > 1:
            size = f'x="{_LEFT}" y="{top:.1f}" width="{frame.width - _LEFT - _RIGHT}" height="{bottom - top:.1f}"'
            parts.append(f'<rect class="band" {size} style="fill:{colour}">{title}</rect>')
        else:
            path = f"M{_LEFT} {top:.1f}H{frame.width - _RIGHT}"
            parts.append(f'<path class="level" d="{path}" style="stroke:{colour}">{title}</path>')
    for place, what in chart.marks:
        at = f"{float(frame.x(place)):.1f}"
        path = f"M{at} {_TOP}V{frame.height - _BOTTOM}"
        parts.append(f'<path class="mark" d="{path}"><title>{escape(what)}</title></path>')
    return parts


def _drawn(frame: _Frame, line: Line) -> str:
    x, y = thinned(line.x, line.y)
    colour = f"var(--c{line.colour % COLOURS})"
    title = f"<title>{escape(line.name)}</title>"
    known = np.isfinite(y)
    at = [f"{a:.1f} {b:.1f}" for a, b in zip(frame.x(x), frame.y(np.where(known, y, 0.0)), strict=True)]
    if line.points or known.sum() == 1:
        dots = "".join(
            f'<circle cx="{place.split()[0]}" cy="{place.split()[1]}" r="3"/>'
            for place, there in zip(at, known, strict=True)
            if there
        )
        return f'<g style="fill:{colour}">{title}{dots}</g>'
    path, begun = [], False
    for place, there in zip(at, known, strict=True):
        if there:
            path.append(f"{'L' if begun else 'M'}{place}")
        begun = bool(there)
    return f'<path class="line" style="stroke:{colour}" d="{"".join(path)}">{title}</path>'


def thinned(x: Column, y: Column) -> tuple[Column, Column]:
    """At most about ``2 * POINTS`` values: of each part of a long line the lowest and the highest, in their order."""
    if x.size <= 2 * POINTS:
        return x, y
    edges = np.linspace(0, x.size, POINTS + 1).astype(int).tolist()
    chosen = []
    for start, end in pairwise(edges):
        part = y[start:end]
        if np.isfinite(part).any():
            chosen += sorted({start + int(np.nanargmin(part)), start + int(np.nanargmax(part))})
        else:
            chosen.append(start)
    return x[chosen], y[chosen]


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round values from ``low`` to ``high``, about ``count`` of them."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _short(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return format_count(value)
    return f"{value:.4g}" if abs(value) >= 0.001 else f"{value:.1e}"
