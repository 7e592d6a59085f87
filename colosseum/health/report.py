"""Checks and nodes as text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from colosseum.console import Listing, columns

if TYPE_CHECKING:
    from rich.console import RenderableType

    from colosseum.health.history import NodeHistory

WORDS = {True: "ok", False: "FAILED", None: "?"}


def checks_text(reports: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """A line a check; of several nodes what did not pass, and a line for each node that has nothing to say."""
    if len(reports) == 1:
        findings = reports[0]["findings"]
        return [columns([(WORDS[f["passed"]], f["name"].replace("_", " "), f["detail"]) for f in findings])]
    rows = []
    for report in reports:
        faults = [f for f in report["findings"] if f["passed"] is False]
        text = "; ".join(f"{f['name'].replace('_', ' ')}: {f['detail']}" for f in faults)
        rows.append((report["node"], WORDS[not faults], text))
    return [columns(rows, ("node", "", ""))]


def nodes_text(nodes: Sequence[NodeHistory], excluded: Sequence[str]) -> list[RenderableType]:
    """A line a node; those that are proposed, or left out already, say why."""
    now = time.time()
    rows = [
        (
            node.node,
            "FAILED" if node.last_failed else "ok",
            f"{node.failed} of {node.checks}",
            f"{max(0.0, now - node.checked_unix_s) / 3600:.1f} h ago",
            "excluded" if node.node in excluded else "propose" if node.exclude else "",
        )
        for node in nodes
    ]
    notes = ["; ".join([*(node.reasons if node.exclude else ()), *node.notes]) for node in nodes]
    return [Listing(headings=("node", "last", "failed", "checked", "exclude"), rows=rows, notes=notes, optional=())]
