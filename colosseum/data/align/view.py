"""One row as training sees it, token by token: trained, context, padding or cut off."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from colosseum.data.align.encode import Encoder, Tokens
from colosseum.data.align.jsonl import BadRow, read_lines
from colosseum.data.align.render import Rendered
from colosseum.errors import Fault, RefusedInput
from colosseum.terminal import clean

State = Literal["trained", "context", "padding", "cut"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A token with its text; adjacent padding is one cell."""

    state: State
    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A sequence of a row."""

    name: str
    """``row``, or a pair's ``chosen`` and ``rejected``."""
    cells: tuple[Cell, ...]

    def count(self, state: State) -> int:
        return sum(len(c.ids) for c in self.cells if c.state == state)

    def sentence(self) -> str:
        counts = [f"{self.count(s):,} {s}" for s in ("trained", "context", "padding", "cut") if self.count(s)]
        return f"{self.name}: {', '.join(counts)} tokens"


def row_views(file: Path, number: int, encoder: Encoder) -> list[View]:
    """The sequences of line ``number`` (1-based) of a file.

    Raises:
        RefusedInput: there is no such row, or it is refused.
    """
    last = 0
    for line in read_lines(file):
        last = line.number
        if line.number < number:
            continue
        if line.number > number:
            break
        try:
            texts = encoder.rendered(line.content)
            tokens = encoder.tokens(texts)
            if bad := next((t for t in tokens if isinstance(t, BadRow)), None):
                raise bad
        except BadRow as bad:
            raise RefusedInput([Fault(path="", value=None, rule=bad.reason, where=f"{file}:{number}")]) from bad
        names = ("chosen", "rejected") if len(texts) == 2 else ("row",)
        pairs = zip(names, texts, tokens, strict=True)
        return [_view(n, text, t, encoder.spec.seq_length) for n, text, t in pairs if isinstance(t, Tokens)]
    rule = "there is no row on this line"
    raise RefusedInput([Fault(path="--row", value=number, rule=rule, nearest=(last,), where=str(file))])


def _view(name: str, text: Rendered, tokens: Tokens, seq_length: int) -> View:
    cells, end, limit = [], 0, seq_length + 1
    for at, (identity, trained, (start, stop)) in enumerate(
        zip(tokens.ids.tolist(), tokens.mask.tolist(), tokens.spans.tolist(), strict=True)
    ):
        # A character of several tokens is shown once.
        shown = text.text[max(start, end) : stop]
        end = max(end, stop)
        state: State = "cut" if at >= limit else "trained" if trained and at else "context"
        cells.append(Cell(state, shown, (identity,)))
    if len(cells) < limit:
        cells.append(Cell("padding", "", (-1,) * (limit - len(cells))))
    return View(name=name, cells=tuple(cells))


def visible(text: str) -> str:
    """Text with visible line ends and spaces."""
    shown = text.replace("\r", "␍").replace("\n", "⏎").replace("\t", "⇥")
    return clean(shown)


STYLE = """
body { font: 15px/1.9 ui-monospace, monospace; margin: 2em auto; max-width: 60em; padding: 0 1em; color: #222; }
h1 { font: 600 20px/1.4 system-ui, sans-serif; } h2, p { font: 15px/1.5 system-ui, sans-serif; }
span { border-radius: 3px; padding: 2px 0; box-shadow: inset -1px 0 #fff8; white-space: pre-wrap; }
.trained { background: #bfe8c5; } .context { background: #e9e9ee; color: #555; }
.padding { background: #fff; color: #999; border: 1px dashed #ccc; padding: 2px 6px; }
.cut { background: #f6c9c4; text-decoration: line-through; }
"""


def as_html(views: Sequence[View], title: str) -> str:
    """One HTML page without scripts and external resources; a token's id is shown as a tooltip."""
    parts = [
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n",
        f"<title>{html.escape(clean(title))}</title>\n<style>{STYLE}</style>\n<h1>{html.escape(clean(title))}</h1>\n",
        "<p>" + " ".join(f"<span class={s}>{s}</span>" for s in ("trained", "context", "padding", "cut")) + "</p>\n",
    ]
    for view in views:
        parts.append(f"<h2>{html.escape(view.sentence())}</h2>\n<div>")
        parts += [_span(cell) for cell in view.cells]
        parts.append("</div>\n")
    return "".join(parts) + "</html>\n"


def _span(cell: Cell) -> str:
    if cell.state == "padding":
        return f"<span class=padding>{len(cell.ids):,} padding</span>"
    text = html.escape(visible(cell.text)).replace("⏎", "⏎<br>") or "·"
    return f'<span class={cell.state} title="id {cell.ids[0]}">{text}</span>'


def as_text(view: View) -> list[tuple[State, str]]:
    """Consecutive tokens of one state with their text."""
    found: list[tuple[State, str]] = []
    for state, cells in groupby(view.cells, key=lambda c: c.state):
        each = list(cells)
        text = f"{len(each[0].ids):,} padding" if state == "padding" else "".join(visible(c.text) for c in each)
        found.append((state, text))
    return found
