"""What every part prints with: the terminal's consoles, lines of text, tables. Rich is imported at the first use."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from colosseum.errors import Fault
from colosseum.terminal import clean

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

UNBOUND_WIDTH = 200
"""Columns of a table where stdout is no terminal: names stay whole."""


@cache
def _console() -> type[Console]:
    """A console that shows text with control characters escaped. Rich is imported when the first one is made."""
    from rich.console import Console
    from rich.segment import Segment

    class Clean(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else clean(text), style, control)

    return Clean


def stdout() -> Console:
    """Results, as wide as the terminal or COLUMNS says; elsewhere, as in a pipe, wide enough for whole names."""
    bounded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return _console()(highlight=False, soft_wrap=not sys.stdout.isatty(), width=None if bounded else UNBOUND_WIDTH)


def stderr() -> Console:
    """Messages, wrapped at words."""
    return _console()(stderr=True, highlight=False)


def show(*parts: RenderableType) -> None:
    """Prints results. A str is printed as it is, never wrapped, and without rich, which takes a while to import."""
    for part in parts:
        if isinstance(part, str):
            say(part)
        else:
            stdout().print(part)


def say(text: str) -> None:
    """A line on stdout, as it is; what is not printable is escaped."""
    sys.stdout.write(f"{clean(text)}\n")


def note(text: str) -> None:
    """A line on stderr at once."""
    sys.stderr.write(f"{clean(text)}\n")
    sys.stderr.flush()


def warn(warnings: Iterable[str]) -> None:
    """Warnings go to stderr, one line each."""
    from rich.text import Text

    for warning in warnings:
        stderr().print(Text("warning: ", style="bold yellow").append(warning, style="not bold default"))


def print_faults(faults: Sequence[Fault]) -> None:
    """One fault is a sentence; several are a numbered list, each with its place under it."""
    from rich.padding import Padding
    from rich.text import Text

    console = stderr()
    if len(faults) > 1:
        console.print(Text(f"error: {len(faults)} faults", style="bold red"))
    for fault in faults:
        head = Text("" if len(faults) > 1 else "error: ", style="bold red")
        if fault.path:
            value = "" if fault.value is None else f" = {_value(fault.value)}"
            head.append(f"{clean(fault.path)}{value}", style="bold default")
            head.append(": ")
        head.append(clean(fault.rule), style="not bold default")
        console.print(Padding(head, (0, 0, 0, 2), expand=False) if len(faults) > 1 else head)
        below = Text(style="default")
        if fault.nearest:
            below.append("nearest: " + ", ".join(_value(n) for n in fault.nearest), style="green")
        if fault.where:
            below.append(("  " if fault.nearest else "") + f"[{clean(fault.where)}]", style="dim")
        if below.plain:
            console.print(Padding(below, (0, 0, 0, 6 if len(faults) > 1 else 4), expand=False))


def print_sentence(text: str) -> None:
    """An error: its first line, and lines of paths and logs as they are."""
    from rich.text import Text

    console = stderr()
    first, *rest = clean(text).split("\n")
    console.print(Text("error: ", style="bold red").append(first, style="not bold default"))
    for line in rest:  # paths and lines of logs, to be copied whole
        console.print(Text(line), soft_wrap=True)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = clean(text)
    return text if len(text) <= 100 else text[:97] + "..."


def counter() -> Callable[[str], None]:
    """A line on a terminal that is written again and again, ten times a second at most; an empty one clears it."""
    last = 0.0

    def show(text: str) -> None:
        nonlocal last
        if sys.stderr.isatty() and ((now := time.monotonic()) - last > 0.1 or not text):
            last = now
            sys.stderr.write(f"\r{text}\033[K\r")
            sys.stderr.flush()

    return show


def columns(rows: Iterable[Sequence[str | Text]], headings: Sequence[str] = (), **options: Any) -> Table:
    """A table without lines. Text is shown as it is; what does not fit is folded, never cut.

    Args:
        options: of rich's Table.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=bool(headings), **{"padding": (0, 2, 0, 0), **options})
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    for column in table.columns:
        column.overflow = "fold"
    return table


def facts(rows: Iterable[tuple[str, str | Text]], **options: Any) -> Table:
    """Names, and beside each its text."""
    from rich.text import Text

    table = columns(((Text(name, style="bold"), text) for name, text in rows), **options)
    table.columns[0].no_wrap = True
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A line for each thing that has a name: no cell is cut or folded.

    Where the terminal is too narrow, columns are left out and notes stand under their lines.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    notes: Sequence[str]
    """Beside each row; empty = none."""
    optional: Sequence[str]
    """Headings of the columns that a narrow terminal does not show; the last is left out first."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.cells import cell_len
        from rich.padding import Padding
        from rich.text import Text

        lines = [[Text(c, style="bold") for c in self.headings], *([Text.assemble(c) for c in r] for r in self.rows)]
        widths = [max(cell_len(line[i].plain) for line in lines) for i in range(len(self.headings))]
        left_out: set[int] = set()
        for heading in reversed(self.optional):
            if sum(width + 2 for i, width in enumerate(widths) if i not in left_out) - 2 > options.max_width:
                left_out.add(self.headings.index(heading))
        for line, note in zip(lines, ["", *self.notes], strict=True):
            for cell, width in zip(line, widths, strict=True):
                cell.pad_right(width - cell.cell_len)
            whole = Text("  ").join(cell for i, cell in enumerate(line) if i not in left_out)
            beside = whole.cell_len + 2 + cell_len(note) <= options.max_width or options.max_width >= UNBOUND_WIDTH
            if note and beside:
                whole.append(f"  {note}")
            whole.rstrip()
            yield whole
            if note and not beside:
                yield Padding(Text(note), (0, 0, 0, 4))
