"""Histograms of all tensors as one picture: a panel for each operand of each linear layer, a line for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from pathlib import Path
from typing import Any

import numpy as np

from colosseum.atomic import replacing
from colosseum.runtime.fp8.casting import BINS, LARGEST, LOWEST
from colosseum.runtime.fp8.report import HYBRID, MODULES, Row

SMALLEST = {"e4m3": 2.0**-9, "e5m2": 2.0**-16}
"""Subnormal numbers (arXiv:2209.05433, table 1); half of one is rounded to 0."""


def save_histograms(rows: Sequence[Row], path: Path, *, title: str) -> None:
    """A PNG: share of a tensor's numbers by exponent and layer, and what its format holds after tensorwise scaling."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(HYBRID), len(MODULES), sharex=True, sharey=True)
    image: Any = None
    for line, kind in enumerate(HYBRID):
        for column, module in enumerate(MODULES):
            mine = [row for row in rows if (row.kind, row.module) == (kind, module)]
            image = _panel(axes[line][column], mine)
            axes[line][column].set_title(f"{module} {kind} ({mine[0].format})", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("exponent (log2)")
    for line in axes:
        line[0].set_ylabel("layer")
    figure.colorbar(image, ax=axes, label="share of the tensor's numbers", shrink=0.6)
    figure.suptitle(f"{title}: between the lines the format holds a number, left of the dashed one it becomes 0")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def _panel(axes: Any, rows: Sequence[Row]) -> Any:
    counts = np.array([row.exponents for row in rows], dtype=float)
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    edges = [row.layer - 0.5 for row in rows] + [rows[-1].layer + 0.5]
    image = axes.pcolormesh(np.arange(BINS + 1) + LOWEST, edges, shares, cmap="viridis", vmin=0, vmax=0.3)
    tops = [log2(row.amax) if row.amax > 0 else float("nan") for row in rows]
    name = rows[0].format
    span = log2(LARGEST[name] / SMALLEST[name]) + 1
    layers = [row.layer for row in rows]
    axes.plot(tops, layers, color="white", linewidth=1)
    axes.plot([top - span for top in tops], layers, color="white", linewidth=1, linestyle="--")
    axes.invert_yaxis() if not axes.yaxis_inverted() else None
    axes.yaxis.get_major_locator().set_params(integer=True)
    return image
