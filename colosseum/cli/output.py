"""How commands print: consoles, JSON documents, and the options many verbs share."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colosseum.atomic import write_whole
from colosseum.errors import ColosseumError, EnvironmentFault, Fault, RefusedInput
from colosseum.terminal import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="Cluster file: shipped, or ~/.config/colosseum/cluster/NAME.yaml. Default: COLOSSEUM_CLUSTER, else local.",
    ),
]
Runs = Annotated[
    Path | None,
    typer.Option(
        "--runs",
        metavar="DIR",
        help="Folder of run folders. Default: COLOSSEUM_RUNS, else the cluster's paths.runs.",
    ),
]


UNBOUND_WIDTH = 200
"""Columns of a table where stdout is no terminal: names stay whole."""


@cache
def _console() -> type[Console]:
    """A console that shows text with control characters escaped. Rich is imported when the first one is made."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Clean(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else clean(text), style, control)

    return Clean


def stdout() -> Console:
    """Results: plain where stdout is no terminal."""
    return _console()(highlight=False, soft_wrap=not sys.stdout.isatty())


def stderr() -> Console:
    """Messages, wrapped at words."""
    return _console()(stderr=True, highlight=False)


def wide() -> Console:
    """Tables of names and reasons, of which none is cut."""
    return _console()(highlight=False, width=None if sys.stdout.isatty() else UNBOUND_WIDTH)


def say(text: str) -> None:
    """A line on stdout, as it is; what is not printable is escaped."""
    sys.stdout.write(f"{clean(text)}\n")


def note(text: str) -> None:
    """A line on stderr at once."""
    sys.stderr.write(f"{clean(text)}\n")
    sys.stderr.flush()


def emit(
    as_json: bool, data: dict[str, Any], show: Callable[[], object], failure: ColosseumError | None = None
) -> None:
    """The answer of a command: one JSON document, or what ``show`` prints.

    Args:
        failure: what the answer comes to, if it is a bad one.

    Raises:
        ColosseumError: ``failure``, after a text.
        typer.Exit: with its exit code, after a document: stdout holds that alone, the sentence goes to stderr.
    """
    if as_json:
        document(data)
    else:
        show()
    if failure is None:
        return
    if not as_json:
        raise failure
    note(f"error: {failure}")
    raise typer.Exit(failure.exit_code)


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


def refuse_existing(path: Path, option: str) -> None:
    """Raises RefusedInput: there is something at ``path`` already, if only a link."""
    if path.exists() or path.is_symlink():
        rule = "already exists; choose another name"
        raise RefusedInput([Fault(path=option, value=str(path), rule=rule, where="command line")])


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


def write_new(path: Path, text: str, option: str) -> None:
    """A file that an option of the command names; nothing is replaced.

    Raises:
        RefusedInput: it exists.
        EnvironmentFault: it cannot be written.
    """
    refuse_existing(path, option)
    write_file(path, text)


def write_file(path: Path, text: str) -> None:
    """Raises EnvironmentFault: it cannot be written."""
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}") from error


def document(data: dict[str, Any]) -> None:
    """The one JSON document of a command; ASCII, so that no terminal and no encoding can make anything else of it."""
    sys.stdout.write(json.dumps(data, allow_nan=False).replace("\x7f", "\\u007f") + "\n")


def warn(warnings: Iterable[str]) -> None:
    """Warnings go to stderr, one line each."""
    from rich.text import Text

    for warning in warnings:
        stderr().print(Text("warning: ", style="bold yellow").append(warning, style="not bold default"))
