"""Loss curves as a picture and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from colosseum.atomic import replacing

_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of the dot at [row][column] of a braille character (Unicode block 2800)."""
_LABEL_WIDTH = 6
COLOURS = ("#1f5fa8", "#c8501e", "#2e8540", "#7a3fa0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Values by step."""

    name: str
    steps: Sequence[int]
    values: Sequence[float]
    marker: str = ""
    """Empty = a line; else the character of each point in the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A horizontal line to compare with."""

    name: str
    value: float


def text_plot(curves: Sequence[Curve], levels: Sequence[Level], *, width: int = 80, height: int = 16) -> str:
    """Curves in ``height`` rows of at most ``width`` characters: braille lines, marked points, dashed levels."""
    frame = _Frame.around(curves, levels, width - _LABEL_WIDTH - 2, height)
    cells = [[0] * frame.columns for _ in range(height)]
    over: dict[tuple[int, int], str] = {}
    for level in levels:
        row = frame.dot_row(level.value) // 4
        over |= {(row, column): "┄" for column in range(frame.columns)}
    for curve in curves:
        dots = [(frame.dot_column(s), frame.dot_row(v)) for s, v in zip(curve.steps, curve.values, strict=True)]
        if curve.marker:
            over |= {(row // 4, column // 2): curve.marker for column, row in dots}
            continue
        for column, row in _joined(dots):
            cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
            if over.get((row // 4, column // 2)) == "┄":
                del over[row // 4, column // 2]
    lines = []
    for row, bits in enumerate(cells):
        body = "".join(over.get((row, c)) or (chr(_BRAILLE + b) if b else " ") for c, b in enumerate(bits))
        label = f"{frame.value_of_row(row):.2f}" if row % 3 == 0 or row == height - 1 else ""
        lines.append(f"{label:>{_LABEL_WIDTH}} │{body}".rstrip())
    lines.append(" " * (_LABEL_WIDTH + 1) + "└" + "─" * frame.columns)
    first, last = f"{frame.first_step}", f"{frame.last_step}"
    middle = "step".center(frame.columns - len(first) - len(last))
    lines.append(" " * (_LABEL_WIDTH + 2) + first + middle + last)
    lines += _key(curves, levels, width)
    return "\n".join(lines)


def _key(curves: Sequence[Curve], levels: Sequence[Level], width: int) -> list[str]:
    words = [f"{c.marker or '⠒⠒'} {c.name}" for c in curves] + [f"┄┄ {x.name} {x.value:.2f}" for x in levels]
    lines, indent = [""], " " * (_LABEL_WIDTH + 2)
    for word in words:
        if lines[-1] and len(indent) + len(lines[-1]) + 3 + len(word) > width:
            lines.append("")
        lines[-1] += ("   " if lines[-1] else "") + word
    return [indent + line for line in lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Steps and values to dots: a character holds 2 by 4."""

    first_step: int
    last_step: int
    low: float
    high: float
    columns: int
    rows: int

    @classmethod
    def around(cls, curves: Sequence[Curve], levels: Sequence[Level], columns: int, rows: int) -> _Frame:
        steps = [s for c in curves for s in c.steps]
        values = [v for c in curves for v in c.values] + [x.value for x in levels]
        if not steps:
            raise ValueError("nothing to plot")
        low, high = min(values), max(values)
        margin = (high - low) * 0.03 or 0.5
        return cls(
            first_step=min(steps),
            last_step=max(steps),
            low=low - margin,
            high=high + margin,
            columns=max(10, columns),
            rows=rows,
        )

    def dot_column(self, step: int) -> int:
        span = max(1, self.last_step - self.first_step)
        return round((step - self.first_step) / span * (2 * self.columns - 1))

    def dot_row(self, value: float) -> int:
        return round((self.high - value) / (self.high - self.low) * (4 * self.rows - 1))

    def value_of_row(self, row: int) -> float:
        """Value at the middle of a row of characters."""
        return self.high - (4 * row + 1.5) / (4 * self.rows - 1) * (self.high - self.low)


def _joined(dots: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Dots of straight lines from each point to the next."""
    filled = list(dots[:1])
    for (column_a, row_a), (column_b, row_b) in pairwise(dots):
        count = max(abs(column_b - column_a), abs(row_b - row_a), 1)
        for i in range(1, count + 1):
            filled.append(
                (round(column_a + (column_b - column_a) * i / count), round(row_a + (row_b - row_a) * i / count))
            )
    return filled


def save_png(curves: Sequence[Curve], levels: Sequence[Level], path: Path, *, title: str) -> None:
    """The same plot as a PNG (matplotlib, extra ``train``)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for curve, colour in zip(curves, COLOURS * len(curves), strict=False):
        style = {"marker": "o", "linestyle": "none", "markersize": 5} if curve.marker else {"linewidth": 1.3}
        axes.plot(curve.steps, curve.values, label=curve.name, color=colour, **style)
    for level in levels:
        axes.axhline(level.value, color="0.35", linestyle="--", linewidth=1, label=f"{level.name} {level.value:.2f}")
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
