"""Text of others in a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colosseum.terminal import clean, is_text, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, größer, 人, 🦀", "plain, größer, 人, 🦀"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J", r"\x9b2J"),  # CSI as one character of C1
        ("a\u202eb\u2066c", r"a\u202eb\u2066c"),
        ("\udcff", r"\udcff"),
        ("\U000e0041", r"\U000e0041"),  # a tag, which shows nothing
        ("a\tb\r\nc\rd\x07", "a\tb\nc\nd\\x07"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert clean(text) == shown


@given(st.text())
def test_nothing_that_drives_a_terminal_is_left(text: str) -> None:
    shown = clean(text)
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    assert clean(shown) == shown
    assert is_text(shown)
    line = one_line(text, 20)
    assert line.isprintable() and len(line) <= 20
