"""How commands print: consoles, JSON documents, and the options many verbs share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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


def stdout() -> Console:
    """Results: plain where stdout is no terminal."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def stderr() -> Console:
    """Messages, wrapped at words."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def document(data: dict[str, Any]) -> None:
    """The one JSON document of a command."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n")


def warn(warnings: Iterable[str]) -> None:
    """Warnings go to stderr, one line each."""
    from rich.text import Text

    for warning in warnings:
        stderr().print(Text("warning: ", style="bold yellow").append(warning, style="not bold default"))
