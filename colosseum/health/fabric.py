"""InfiniBand and RoCE ports in /sys/class/infiniband: state, rate, and flaps of a link since the last check."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from colosseum.health.finding import Finding, Site

MANY_FLAPS = 3
COUNTERS = ("link_downed", "symbol_error", "port_rcv_errors", "link_error_recovery")


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port."""

    name: str
    """``mlx5_0/1``."""
    state: str
    """``ACTIVE``, ``DOWN``, …"""
    rate_gb: float
    """Gb/s."""
    downed: int
    """How often the link went down since the counters were cleared."""
    errors: int


def fabric(site: Site, root: Path = Path("/sys/class/infiniband")) -> Finding:
    """All ports are active at one rate, and none flapped."""
    return judge_ports(read_ports(root), site)


def read_ports(root: Path) -> list[Port]:
    """All ports below ``/sys/class/infiniband``."""
    ports = []
    for place in sorted(root.glob("*/ports/*")):
        counters = {name: _count(place / "counters" / name) for name in COUNTERS}
        rate = re.match(r"[\d.]+", _text(place / "rate"))
        ports.append(
            Port(
                name=f"{place.parents[1].name}/{place.name}",
                state=_text(place / "state").partition(":")[2].strip() or "unknown",
                rate_gb=float(rate[0]) if rate else 0.0,
                downed=counters["link_downed"],
                errors=sum(counters.values()) - counters["link_downed"],
            )
        )
    return ports


def judge_ports(ports: list[Port], site: Site) -> Finding:
    """Compared with one another and with the last check."""
    if not ports:
        return Finding(name="fabric", passed=None, detail="no InfiniBand or RoCE port")
    figures: dict[str, float] = {}
    faults, notes = [], []
    rate = Counter(port.rate_gb for port in ports).most_common(1)[0][0]
    for port in ports:
        figures[f"link_downed:{port.name}"] = float(port.downed)
        figures[f"link_errors:{port.name}"] = float(port.errors)
        flaps = port.downed - site.before.get(f"link_downed:{port.name}", float(port.downed))
        if port.state != "ACTIVE":
            faults.append(f"{port.name} is {port.state}")
        elif port.rate_gb < rate:
            faults.append(f"{port.name} has {port.rate_gb:g} Gb/s, the others {rate:g}")
        if flaps >= MANY_FLAPS:
            faults.append(f"{port.name} went down {flaps:.0f} times since the last check")
        elif flaps > 0:
            notes.append(f"{port.name} went down {flaps:.0f} times since the last check")
    if faults or notes:
        passed = False if faults else None
        return Finding(name="fabric", passed=passed, detail="; ".join([*faults, *notes]), figures=figures)
    return Finding(name="fabric", passed=True, detail=f"{len(ports)} ports at {rate:g} Gb/s", figures=figures)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _count(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdecimal() else 0
