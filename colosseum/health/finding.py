"""What one check found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check of one node."""

    name: str
    passed: bool | None
    """None = cannot be said, or a warning: no reason to drain the node."""
    detail: str
    figures: Mapping[str, float] = field(default_factory=dict)
    """In base units, for the history."""

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "passed": self.passed, "detail": self.detail, "figures": dict(self.figures)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the checks are told of a node."""

    local: Path = Path("/tmp")  # noqa: S108 (a folder of the node; no fixed file name is used in it)
    shared: Path | None = None
    image: Path | None = None
    gpus: int | None = None
    """None = as many as there are."""
    before: Mapping[str, float] = field(default_factory=dict)
    """Figures of the node's last check."""


Check = Callable[[Site], Finding]
