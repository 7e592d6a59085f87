"""The last lines of logs, and logs that are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colosseum.monitor import logs


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text("ab\n", max_size=60), lines=st.integers(0, 20))
def test_the_last_lines(text: str, lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "READ_BYTES", 7)
    path = tmp_path / "rank.log"
    path.write_text(text)
    told = "".join(part for _, part in logs.Reader(lines).new([path]))
    assert told == "".join(
        text.splitlines(keepends=True)[len(text.splitlines()) - lines if lines < len(text.splitlines()) else 0 :]
        if lines
        else []
    )


def test_a_gigabyte_without_a_line_end_is_looked_at_in_part(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    with path.open("wb") as file:  # a file of holes: nothing is written
        file.truncate(1 << 30)
    assert logs._offset_of_last(path, 50) == (1 << 30) - logs.TAIL_BYTES
    (line,) = logs.last_lines(path, 12)
    assert len(line) == logs.READ_BYTES


def test_a_log_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank.log")
    reader = logs.Reader(50)
    assert list(reader.new([tmp_path / "rank.log"])) == [(tmp_path / "rank.log", "(rank.log is no regular file)\n")]
    assert list(reader.new([tmp_path / "rank.log"])) == []
    assert logs.last_lines(tmp_path / "rank.log", 12) == []
