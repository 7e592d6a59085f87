"""How commands answer: one JSON document or text, files that options name, and the options many verbs share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colosseum.atomic import write_whole
from colosseum.console import columns, counter, facts, note, say, show, stderr, stdout, warn
from colosseum.errors import ColosseumError, EnvironmentFault, Fault, RefusedInput

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["columns", "counter", "facts", "note", "say", "show", "stderr", "stdout", "warn"]
"""Of ``colosseum.console``, for the verbs."""

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="Cluster (`colosseum cluster list` shows them). Default: COLOSSEUM_CLUSTER, else local.",
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


def emit(
    as_json: bool,
    data: dict[str, Any],
    text: Callable[[], RenderableType | Sequence[RenderableType] | None],
    failure: ColosseumError | None = None,
) -> None:
    """The answer of a command: one JSON document, or ``text``.

    Args:
        text: makes what is printed, in one part or several; None = nothing, or it has printed itself.
        failure: what the answer comes to, if it is a bad one.

    Raises:
        ColosseumError: ``failure``, after a text.
        typer.Exit: with its exit code, after a document: stdout holds that alone, the sentence goes to stderr.
    """
    if as_json:
        document(data)
    elif (answer := text()) is not None:
        show(*([answer] if isinstance(answer, str) or not isinstance(answer, Sequence) else answer))
    if failure is None:
        return
    if not as_json:
        raise failure
    note(f"error: {failure}")
    raise typer.Exit(failure.exit_code)


def refuse_existing(path: Path, option: str) -> None:
    """Raises RefusedInput: there is something at ``path`` already, if only a link."""
    if path.exists() or path.is_symlink():
        rule = "already exists; choose another name"
        raise RefusedInput([Fault(path=option, value=str(path), rule=rule, where="command line")])


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
