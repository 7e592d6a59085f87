"""What nodes write: one file of JSON lines a node in the health folder. No two nodes write to one file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from colosseum import records
from colosseum.health.preflight import SCHEMA, Report
from colosseum.reading import Unreadable, rows, tail

NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
TAIL_BYTES = 1 << 16


def write(folder: Path, report: Report) -> None:
    """Appends a report to its node's file.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records.append(folder / f"{report.node}.jsonl", records.line_of(report.as_json()))


def figures_before(folder: Path | None, node: str) -> dict[str, float]:
    """Figures of a node's last report; empty if there is none."""
    if folder is None:
        return {}
    try:
        for line in reversed(tail(folder / f"{node}.jsonl", TAIL_BYTES)):
            if (row := records.parse_object(line)) is not None and (found := parse(row)) is not None:
                return {name: value for finding in found["findings"] for name, value in finding["figures"].items()}
    except Unreadable:
        pass
    return {}


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """All valid reports, node by node."""
    for path in sorted(folder.glob("*.jsonl")):
        try:
            yield from (found for row in rows(path) if (found := parse(row)) is not None)
        except Unreadable:
            continue


def parse(row: dict[str, Any]) -> dict[str, Any] | None:
    """A report that others may have written, with checked types; None if it is none."""
    node, when = records.text(row.get("node"), 100), records.number(row.get("time_unix_s"))
    findings = row.get("findings")
    if row.get("schema") != SCHEMA or not NODE.fullmatch(node) or when is None or not isinstance(findings, list):
        return None
    kept = []
    for finding in findings[:100]:
        if not isinstance(finding, dict) or finding.get("passed") not in (True, False, None):
            continue
        figures = finding.get("figures")
        known = figures.items() if isinstance(figures, dict) else ()
        kept.append(
            {
                "name": records.text(finding.get("name"), 100),
                "passed": finding.get("passed"),
                "detail": records.text(finding.get("detail"), 500),
                "figures": {
                    records.text(name, 100): number
                    for name, value in list(known)[:200]
                    if (number := records.number(value)) is not None
                },
            }
        )
    return {"node": node, "time_unix_s": when, "findings": kept}
