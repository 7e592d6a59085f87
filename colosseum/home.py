"""Paths that begin with ~, as a user types them or writes them in a file."""

from __future__ import annotations

import os
from pathlib import Path

from colosseum.errors import Fault, RefusedInput


def expanded(path: str | Path, field: str, where: str = "") -> Path:
    """The path with its ``~`` or ``~USER`` replaced.

    Raises:
        RefusedInput: there is no such user, or the user has no home.
    """
    found = os.path.expanduser(path)  # noqa: PTH111 - pathlib raises RuntimeError
    if str(found).startswith("~"):
        raise RefusedInput([Fault(path=field, value=str(path), rule="is in a home that does not exist", where=where)])
    return Path(found)


def named_runs(given: Path | None) -> Path | None:
    """The folder of run folders that --runs or COLOSSEUM_RUNS names; None = neither is given."""
    if given is not None:
        return expanded(given, "--runs", "command line")
    named = os.environ.get("COLOSSEUM_RUNS")
    return expanded(named, "COLOSSEUM_RUNS", "$COLOSSEUM_RUNS") if named else None
