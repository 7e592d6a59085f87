"""Files of a report besides its page: every logged step as CSV, a chart as PNG."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from colosseum.atomic import replacing
from colosseum.errors import EnvironmentFault
from colosseum.monitor.chart import Chart
from colosseum.monitor.contents import Contents
from colosseum.monitor.plot import COLOURS
from colosseum.monitor.series import COLUMNS

_WHOLE = ("step", "attempt", "consumed_tokens")


def csv_of(runs: Sequence[Contents]) -> str:
    """A line for each training row of each run; ``kept`` is 0 for steps that were trained again later."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("run", "kept", *COLUMNS))
    for one in runs:
        name, kept = one.run.root.resolve().name, one.metrics.kept()
        for place in range(kept.size):
            values = [_cell(column, one.metrics.train[column][place]) for column in COLUMNS]
            writer.writerow((name, int(kept[place]), *values))
    return out.getvalue()


def save_picture(chart: Chart, path: Path) -> None:
    """A chart as PNG.

    Raises:
        EnvironmentFault: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise EnvironmentFault("a PNG needs matplotlib (pip install matplotlib); --svg needs nothing") from None
    figure = Figure(figsize=(9, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for line in chart.lines:
        style = {"marker": "o", "linestyle": "none", "markersize": 4} if line.points else {"linewidth": 1.3}
        axes.plot(line.x, line.y, label=line.name, color=COLOURS[line.colour % len(COLOURS)], **style)
    axes.set_title(chart.title)
    axes.set_xlabel(chart.x_name)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png")
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}") from error


def _cell(column: str, value: float) -> str:
    if not np.isfinite(value):
        return ""
    return str(int(value)) if column in _WHOLE else repr(float(value))
