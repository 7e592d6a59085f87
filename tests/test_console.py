"""Listings: names are never cut; what does not fit is left out, or stands below."""

from __future__ import annotations

import pytest

from colosseum.console import Listing, show

NAME = "20261203-120000-colosseum-355b-cpt-16k-expand"


def _lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int | None) -> list[str]:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    show(
        Listing(
            headings=("run", "job", "state", "step", "loss"),
            rows=[(NAME, "1234567", "failed", "12,000/19,376", "1.7500"), ("short", "1", "running", "3", "")],
            notes=["rank 12 wrote no outcome.json:\x1b[2J its node was lost", ""],
            optional=("job", "loss"),
        )
    )
    return capsys.readouterr().out.splitlines()


def test_a_wide_terminal_shows_everything_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for width in (160, None):
        head, first, second = _lines(monkeypatch, capsys, width)
        assert head.split() == ["run", "job", "state", "step", "loss"]
        assert first.startswith(f"{NAME}  1234567  failed   12,000/19,376  1.7500  rank 12 wrote")
        assert first.endswith(r"outcome.json:\x1b[2J its node was lost")
        assert second.split() == ["short", "1", "running", "3"]
        assert first.index("12,000/") == second.index("3") == head.index("step")


def test_80_columns_leave_out_a_column_and_fold_a_note_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head, first, note, second = _lines(monkeypatch, capsys, 80)
    assert head.split() == ["run", "job", "state", "step"]
    assert first.split() == [NAME, "1234567", "failed", "12,000/19,376"]
    assert note.strip() == r"rank 12 wrote no outcome.json:\x1b[2J its node was lost"
    assert second.split() == ["short", "1", "running", "3"]


def test_a_name_longer_than_the_terminal_stays_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert NAME in "".join(_lines(monkeypatch, capsys, 40))
