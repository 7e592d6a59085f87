"""The nodes that submissions leave out: a file in the health folder, one name a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from colosseum.atomic import write_whole
from colosseum.health.records import NODE
from colosseum.reading import Unreadable, read_bytes

FOLDER = "health"
"""Beside the run folders."""
FILE = "exclude"


def excluded(runs: Path) -> list[str]:
    """Names in the list of a folder of runs; none if there is no list, or it cannot be read."""
    try:
        text = read_bytes(runs / FOLDER / FILE, limit=1 << 20).decode(errors="replace")
    except (FileNotFoundError, Unreadable):
        return []
    return [line for line in text.split() if NODE.fullmatch(line)]


def write_excluded(runs: Path, nodes: Sequence[str]) -> None:
    """Replaces the list.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(runs / FOLDER / FILE, "".join(f"{node}\n" for node in nodes).encode())
