"""How commands print: consoles, JSON documents, and the options many verbs share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colosseum.terminal import clean

if TYPE_CHECKING:
    from rich.console import Console

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
    """A console that shows text and obeys none of it. Rich is imported when the first one is made."""
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


def document(data: dict[str, Any]) -> None:
    """The one JSON document of a command; ASCII, so that no terminal and no encoding can make anything else of it."""
    sys.stdout.write(json.dumps(data, allow_nan=False).replace("\x7f", "\\u007f") + "\n")


def warn(warnings: Iterable[str]) -> None:
    """Warnings go to stderr, one line each."""
    from rich.text import Text

    for warning in warnings:
        stderr().print(Text("warning: ", style="bold yellow").append(warning, style="not bold default"))
