"""The time of each part of a command, for ``-v``. A process is one command, so there is one watch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_parts: dict[str, float] = {}
_began_s: float | None = None
"""On CLOCK_BOOTTIME; None = off."""
SLURM = ("sbatch --test-only", "sbatch")


def start_reading(wanted: bool) -> None:
    """Parts are summed from here on; the total counts from the start of the process."""
    global _began_s
    _parts.clear()
    _began_s = _process_start_s() if wanted else None
    if _began_s is not None:
        _parts["start of Python and imports"] = _now_s() - _began_s


@contextmanager
def part(name: str) -> Iterator[None]:
    """Adds what the block takes to a part."""
    began_s = time.perf_counter()
    try:
        yield
    finally:
        _parts[name] = _parts.get(name, 0.0) + time.perf_counter() - began_s


def reading() -> str | None:
    """One line: each part, our own work and the total, in seconds; None = off."""
    if _began_s is None:
        return None
    total_s = _now_s() - _began_s
    return sentence(_parts, total_s)


def sentence(parts: Mapping[str, float], total_s: float) -> str:
    """Own work is all that Slurm's commands do not take."""
    own_s = total_s - sum(parts.get(name, 0.0) for name in SLURM)
    figures = ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items())
    return f"seconds: {figures}; own work {own_s:.2f}, total {total_s:.2f}"


def process_start_unix_s() -> float:
    """When this process began."""
    return time.time() - (_now_s() - _process_start_s())


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _process_start_s() -> float:
    """When this process began, by the kernel's count of ticks since boot (proc(5), field 22); else now."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return _now_s()
