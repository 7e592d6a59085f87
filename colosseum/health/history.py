"""The history of all nodes in one SQLite file, which only the login node writes, and what follows from it."""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = "nodes.sqlite"
NEWEST = 10
"""Checks of a node that count for the proposal."""
OFTEN = 3
"""Of them, so many that failed."""
SLOW = 0.5
"""A disk below this share of the fleet's median is slow."""
_TABLES = """
CREATE TABLE IF NOT EXISTS checks (node TEXT, time REAL, name TEXT, passed INTEGER, detail TEXT,
  PRIMARY KEY (node, time, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS figures (node TEXT, time REAL, name TEXT, value REAL,
  PRIMARY KEY (node, time, name)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """One node, by its newest checks."""

    node: str
    checked_unix_s: float
    checks: int
    failed: int
    """Of the newest ten, how many failed."""
    last_failed: bool
    reasons: tuple[str, ...]
    """Of the last check that failed."""
    notes: tuple[str, ...] = field(default=())
    """Trends: figures that differ from the fleet's."""

    @property
    def exclude(self) -> bool:
        """Proposed: the last check failed, or several of the newest ones did."""
        return self.last_failed or self.failed >= OFTEN


def update(folder: Path, reports: Iterable[dict[str, Any]]) -> None:
    """Adds reports that the file does not have yet.

    Raises:
        sqlite3.Error: the file cannot be written, or is none of ours.
    """
    with closing(sqlite3.connect(folder / FILE, timeout=10)) as base, base:
        base.executescript(_TABLES)
        for report in reports:
            at = (report["node"], report["time_unix_s"])
            for finding in report["findings"]:
                row = (*at, finding["name"], finding["passed"], finding["detail"])
                base.execute("INSERT OR IGNORE INTO checks VALUES (?, ?, ?, ?, ?)", row)
                for name, value in finding["figures"].items():
                    base.execute("INSERT OR IGNORE INTO figures VALUES (?, ?, ?, ?)", (*at, name, value))


def nodes(folder: Path) -> list[NodeHistory]:
    """All nodes, by name.

    Raises:
        sqlite3.Error: the file cannot be read, or is none of ours.
    """
    with closing(sqlite3.connect(folder / FILE, timeout=10)) as base:
        base.executescript(_TABLES)
        names = [name for (name,) in base.execute("SELECT DISTINCT node FROM checks ORDER BY node")]
        slow = _slow(base)
        return [_node(base, name, slow.get(name, ())) for name in names]


def _node(base: sqlite3.Connection, node: str, notes: tuple[str, ...]) -> NodeHistory:
    times = [
        time
        for (time,) in base.execute(
            "SELECT DISTINCT time FROM checks WHERE node = ? ORDER BY time DESC LIMIT ?", (node, NEWEST)
        )
    ]
    bad = base.execute(
        "SELECT time, name, detail FROM checks WHERE node = ? AND passed = 0 AND time >= ? ORDER BY time DESC",
        (node, times[-1]),
    ).fetchall()
    failed = {time for time, _, _ in bad}
    last = max(failed, default=None)
    return NodeHistory(
        node=node,
        checked_unix_s=times[0],
        checks=len(times),
        failed=len(failed),
        last_failed=times[0] in failed,
        reasons=tuple(f"{name}: {detail}" for time, name, detail in bad if time == last),
        notes=notes,
    )


def _slow(base: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Nodes whose median speed of a disk is far below the fleet's."""
    found: dict[str, list[str]] = {}
    for figure in ("local_disk_bytes_per_s", "shared_folder_bytes_per_s"):
        by_node: dict[str, list[float]] = {}
        for node, value in base.execute("SELECT node, value FROM figures WHERE name = ?", (figure,)):
            by_node.setdefault(node, []).append(value)
        medians = {node: statistics.median(values[-NEWEST:]) for node, values in by_node.items()}
        if len(medians) < 3:
            continue
        fleet = statistics.median(medians.values())
        for node, value in medians.items():
            if value < SLOW * fleet:
                what = figure.removesuffix("_bytes_per_s").replace("_", " ")
                found.setdefault(node, []).append(
                    f"{what} at {value / 1e6:.0f} MB/s, the fleet's median is {fleet / 1e6:.0f} MB/s"
                )
    return {node: tuple(notes) for node, notes in found.items()}
