"""``dcgmi diag -j``: the answers of DCGM 3 (categories of tests, a result for each GPU) and 4 (tests by name)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from colosseum.health import tools
from colosseum.health.finding import Finding, Site

QUICK, MEDIUM = "1", "2"
"""Run levels: seconds; about two minutes."""


def diagnose(site: Site) -> Finding:
    """The quick run level."""
    try:
        text = tools.run("dcgmi", "diag", "-r", QUICK, "-j", timeout_s=60)
    except tools.ToolFault as fault:
        return Finding(name="dcgm", passed=None, detail=str(fault))
    return judge_diag(text)


def judge_diag(text: str) -> Finding:
    """Failed tests with what DCGM says of them; no verdict where nothing was tested."""
    start = text.find("{")
    try:
        document = json.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        document = None
    found = list(_results(document)) if isinstance(document, dict) else []
    failed = [f"{name}: {why or 'failed'}" for name, status, why in found if status == "fail"]
    passed = sum(status == "pass" for _, status, _ in found)
    if failed:
        return Finding(name="dcgm", passed=False, detail="; ".join(dict.fromkeys(failed)))
    if not passed:
        return Finding(name="dcgm", passed=None, detail="dcgmi reported no test that passed or failed")
    return Finding(name="dcgm", passed=True, detail=f"{passed} results passed")


def _results(value: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Test, status in lower case and warning of each result, wherever it lies in the document."""
    if isinstance(value, dict):
        name = str(value.get("name") or value.get("test_name") or name)
        status = value.get("status")
        if isinstance(status, str):
            yield name, status.strip().lower(), _why(value.get("warnings") or value.get("warning"))
        for key, part in value.items():
            if key not in ("warnings", "warning"):
                yield from _results(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from _results(part, name)


def _why(warnings: Any) -> str:
    first = warnings[0] if isinstance(warnings, list) and warnings else warnings
    if isinstance(first, dict):
        first = first.get("warning") or first.get("error")
    return str(first)[:300] if isinstance(first, str) else ""
