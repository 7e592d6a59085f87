"""Runs the checks of this node side by side, within a limit: a check that hangs or breaks is no verdict."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from colosseum.health import dcgm, fabric, gpu, host
from colosseum.health.finding import Check, Finding, Site

LIGHT_S = 8.0
FULL_S = 120.0
LIGHT: tuple[Check, ...] = (
    *(host.cpus, host.memory, host.clock, host.local_disk, host.shared_folder, host.image),
    *(gpu.gpus, gpu.xids, fabric.fabric),
)
FULL: tuple[Check, ...] = (*LIGHT, dcgm.diagnose)
SCHEMA = "colosseum.health/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the checks of one node found."""

    node: str
    time_unix_s: float
    took_s: float
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.passed is False)

    def as_json(self) -> dict[str, Any]:
        findings = [finding.as_json() for finding in self.findings]
        head = {"schema": SCHEMA, "node": self.node, "time_unix_s": self.time_unix_s, "took_s": self.took_s}
        return {**head, "passed": not self.failed, "findings": findings}


def preflight(site: Site, checks: Sequence[Check] = LIGHT, limit_s: float = LIGHT_S) -> Report:
    """All checks at the same time; what has not answered when the limit is over is left behind (daemon threads)."""
    began = time.monotonic()
    found: dict[int, Finding] = {}

    def work(place: int, check: Check) -> None:
        try:
            found[place] = check(site)
        except Exception as error:  # a bug of ours is no fault of the node
            found[place] = Finding(name=_name(check), passed=None, detail=f"the check failed: {error!r}"[:300])

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in enumerate(checks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, limit_s - (time.monotonic() - began)))
    late = f"no answer within {limit_s:g} s"
    findings = tuple(
        found.get(place) or Finding(name=_name(check), passed=None, detail=late) for place, check in enumerate(checks)
    )
    took_s = time.monotonic() - began
    return Report(node=os.uname().nodename, time_unix_s=time.time(), took_s=took_s, findings=findings)


def _name(check: Check) -> str:
    return str(getattr(check, "__name__", "check"))
