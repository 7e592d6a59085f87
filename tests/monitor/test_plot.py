"""The loss plot in the terminal and as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colosseum.monitor.plot import Curve, Level, save_png, text_plot

FALLING = Curve(name="training", steps=[1, 2, 3, 4], values=[4.0, 3.0, 2.0, 1.0])


def _rows(text: str) -> list[str]:
    """What stands right of the axis."""
    return [line.split("│")[1] for line in text.splitlines() if "│" in line]


def test_a_straight_line_falls_from_corner_to_corner() -> None:
    rows = _rows(text_plot([FALLING], [], width=28, height=10))
    first = [next(i for i, c in enumerate(row) if c != " ") for row in rows]
    assert len(rows) == 10
    assert first == sorted(first)
    assert first[0] == 0 and len(rows[-1]) == 20


def test_marks_and_levels_stand_at_their_values() -> None:
    points = Curve(name="validation", steps=[4], values=[4.0], marker="●")
    rows = _rows(text_plot([FALLING, points], [Level(name="entropy", value=2.5)], width=30, height=9))
    assert [i for i, row in enumerate(rows) if "●" in row] == [0]
    assert rows[0].rstrip().endswith("●")
    assert [i for i, row in enumerate(rows) if "┄" in row] == [4]


def test_key_names_all_that_is_drawn() -> None:
    text = text_plot([FALLING], [Level(name="entropy", value=2.5)], width=40)
    assert "training" in text and "entropy 2.50" in text and "step" in text


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50),
    width=st.integers(40, 200),
    height=st.integers(4, 30),
)
def test_no_line_is_wider_than_the_terminal(values: list[float], width: int, height: int) -> None:
    curve = Curve(name="loss", steps=list(range(1, len(values) + 1)), values=values)
    lines = text_plot([curve], [], width=width, height=height).splitlines()
    assert len(lines) == height + 3
    assert all(len(line) <= width for line in lines if "│" not in line or len(line.split("│")[0]) <= 7)


def test_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save_png([FALLING], [Level(name="entropy", value=2.5)], tmp_path / "loss.png", title="loss")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert [p.name for p in tmp_path.iterdir()] == ["loss.png"]
