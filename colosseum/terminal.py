"""Untrusted text in a terminal: shown with control characters escaped."""

from __future__ import annotations

MAX_LINE = 4096
"""Characters of one line that are shown: more is no sentence."""


def clean(text: str) -> str:
    r"""``text`` without characters that drive a terminal or hide what stands there.

    Everything that is not printable by Unicode is written as its escape: ESC and the other C0 and C1 controls, the
    bidirectional controls (U+202E), unpaired surrogates of words that were no UTF-8. Line ends and tabs stay; a
    carriage return, which could write over the line before it, ends the line.
    """
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(c if c.isprintable() or c in "\n\t" else _escape(ord(c)) for c in text)


def is_text(text: str) -> bool:
    """Whether it can be written as UTF-8: half a surrogate pair, as of a word that was no UTF-8, cannot."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """``text`` clean, on one line, cut at ``limit`` characters."""
    line = " ".join(clean(text[: 2 * limit]).split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."
