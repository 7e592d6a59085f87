"""A picture of a selection: each score with its 95% interval, checkpoint by checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from colosseum.atomic import replacing
from colosseum.errors import EnvironmentFault

Bar = tuple[float, float, float]
"""Mean, low, high."""


def draw(
    path: Path, titles: Sequence[str], names: Sequence[str], bars: Sequence[Sequence[Bar]], chosen: str, parent: str
) -> None:
    """Writes a PNG with one panel per score.

    Args:
        bars: for each title, one bar per name.
        parent: name of the parent, whose mean is a dashed line; empty = none is among the names.

    Raises:
        EnvironmentFault: matplotlib is missing, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EnvironmentFault("the picture needs matplotlib: pip install 'colosseum[train]'") from error
    figure = Figure(figsize=(1.5 + 0.5 * max(8, len(names)), 3 * len(titles)), layout="constrained")
    axes = figure.subplots(len(titles), 1, squeeze=False)[:, 0]
    for axis, title, row in zip(axes, titles, bars, strict=True):
        for place, (name, (mean, low, high)) in enumerate(zip(names, row, strict=True)):
            color = "C1" if name == chosen else "C7" if name == parent else "C0"
            ends = [[100 * (mean - low)], [100 * (high - mean)]]
            axis.errorbar([place], [100 * mean], yerr=ends, fmt="o", capsize=4, color=color)
            if name == parent:
                axis.axhline(100 * mean, linestyle="--", linewidth=0.8, color="C7")
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
        axis.set_ylabel(f"{title} (%)")
        axis.grid(axis="y", linewidth=0.3)
    axes[0].set_title("95% intervals; selected: orange, parent: grey", fontsize=9)
    try:
        with replacing(path) as temporary:
            FigureCanvasAgg(figure).print_png(str(temporary))
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}") from error
