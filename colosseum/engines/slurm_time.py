"""Time limits as Slurm writes them, and as a recipe does."""

from __future__ import annotations

import re
from typing import Any

_TIME = re.compile(
    r"(?:(?P<d>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+))?(?::(?P<ds>\d+))?|(?P<a>\d+)(?::(?P<b>\d+))?(?::(?P<c>\d+))?)"
)


def slurm_seconds(text: str) -> int | None:
    """Slurm's minutes, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M``, ``D-H:M:S``; None for anything else."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    number: dict[str, Any] = {name: int(value or 0) for name, value in match.groupdict().items()}
    if match["d"] is not None:
        return int(((number["d"] * 24 + number["dh"]) * 60 + number["dm"]) * 60 + number["ds"])
    if match["c"] is not None:
        return int((number["a"] * 60 + number["b"]) * 60 + number["c"])
    return int(number["a"] * 60 + number["b"])


def written_duration(seconds: int) -> str:
    """``24h``, ``1h30m``: as a recipe writes a duration."""
    parts = ((seconds // 3600, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    return "".join(f"{value}{unit}" for value, unit in parts if value)
