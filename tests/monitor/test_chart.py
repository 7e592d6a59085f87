"""Charts as SVG: what is drawn is where the values are."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from colosseum.monitor.chart import POINTS, Band, Chart, Line, svg, thinned, ticks

NAN = float("nan")


def _line(y: list[float], **more: object) -> Line:
    return Line(name="<a&b>", x=np.arange(1.0, len(y) + 1), y=np.array(y), **more)  # type: ignore[arg-type]


def _places(text: str) -> list[tuple[float, float]]:
    (path,) = re.findall(r'class="line"[^>]* d="([^"]*)"', text)
    return [(float(a), float(b)) for a, b in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def test_a_line_rises_where_its_values_do_and_is_interrupted_where_there_are_none() -> None:
    text = svg(Chart(title="t", x_name="step", lines=[_line([1.0, 2.0, NAN, 4.0, 3.0])]))
    ET.fromstring(text)
    places = _places(text)
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    heights = [y for _, y in places]  # SVG counts from the top
    assert heights[0] > heights[1] > heights[3] > heights[2]
    assert text.count("M") - text.count('class="grid"') == 2
    assert "&lt;a&amp;b&gt;" in text


def test_a_spike_does_not_flatten_the_rest() -> None:
    values = [1.0 + (i % 10) / 10 for i in range(1000)]
    values[500] = 1e6
    heights = [y for _, y in _places(svg(Chart(title="t", x_name="step", lines=[_line(values)])))]
    assert max(heights) - sorted(heights)[len(heights) // 2] > 20


def test_a_band_of_one_value_is_a_level_and_lies_inside_the_frame() -> None:
    chart = Chart(title="t", x_name="step", lines=[_line([1.0, 1.1])], bands=[Band(name="plan", low=5, high=5)])
    at = float(re.findall(r'class="level" d="M58 ([\d.]+)', svg(chart))[0])
    assert 10 < at < 206


@pytest.mark.parametrize("values", [[], [NAN, NAN], [3.0], [0.0, 0.0]])
def test_odd_lines_are_drawn(values: list[float]) -> None:
    ET.fromstring(svg(Chart(title="t", x_name="step", lines=[_line(values)], percent=True, zero=True), style=True))


def test_thinning_keeps_the_highest_and_the_lowest() -> None:
    y = np.sin(np.arange(100_000.0))
    y[77_777], y[33_333] = 9.0, -9.0
    x, found = thinned(np.arange(100_000.0), y)
    assert x.size <= 2 * POINTS
    assert (found.max(), found.min()) == (9.0, -9.0)
    assert (np.diff(x) > 0).all()


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 100, 5) == [0, 20, 40, 60, 80, 100]
    assert ticks(1.234, 1.239, 5) == [1.234, 1.235, 1.236, 1.237, 1.238, 1.239]
    assert all(3e-9 <= tick <= 7e-9 for tick in ticks(3e-9, 7e-9, 5))
