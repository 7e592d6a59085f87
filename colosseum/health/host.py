"""CPUs, memory, clock, disks and the image of a node, from /proc, /sys and files."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

from colosseum.health.finding import Finding, Site

PROBE_BYTES = 8 << 20
FREE_BYTES = 1 << 30
"""Of a local disk."""
SKEW_S = 2.0
SHRUNK = 0.97
"""Memory below this share of what the node had at its last check: a module is missing."""


def cpus(site: Site, sys: Path = Path("/sys/devices/system/cpu"), proc: Path = Path("/proc")) -> Finding:
    """All CPUs are online; a load left over from another job is a warning."""
    present, online = (count_of(_read(sys / name)) for name in ("present", "online"))
    load = float(_read(proc / "loadavg").split()[0])
    figures = {"cpus_online": float(online), "load": load}
    if online < present:
        return Finding(
            name="cpus", passed=False, detail=f"{present - online} of {present} CPUs are offline", figures=figures
        )
    busy = load > online
    detail = f"{online} CPUs, load {load:g}" + (": processes of another job may be left over" if busy else "")
    return Finding(name="cpus", passed=None if busy else True, detail=detail, figures=figures)


def memory(site: Site, proc: Path = Path("/proc"), edac: Path = Path("/sys/devices/system/edac/mc")) -> Finding:
    """No memory is missing, and none had an error that was not corrected."""
    fields = dict(line.split(":", 1) for line in _read(proc / "meminfo").splitlines() if ":" in line)
    total, free = (1024.0 * int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    errors = sum(int(_read(path)) for path in sorted(edac.glob("mc*/ue_count")))
    figures = {"memory_bytes": total, "memory_free_bytes": free, "memory_errors": float(errors)}
    before = site.before.get("memory_bytes", 0.0)
    if errors:
        return Finding(name="memory", passed=False, detail=f"{errors} uncorrected memory errors", figures=figures)
    if total < SHRUNK * before:
        detail = f"{total / 2**30:.1f} GiB, {before / 2**30:.1f} GiB at the last check: is a module missing?"
        return Finding(name="memory", passed=False, detail=detail, figures=figures)
    return Finding(
        name="memory",
        passed=True,
        detail=f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB free",
        figures=figures,
    )


def clock(site: Site) -> Finding:
    """Our clock agrees with that of the shared file system's server."""
    if site.shared is None:
        return Finding(name="clock", passed=None, detail="no shared folder is known to compare with")
    path = site.shared / f".clock-{secrets.token_hex(6)}"
    try:
        began = time.time()
        path.touch(exist_ok=False)
        stamp, ended = path.stat().st_mtime, time.time()
    finally:
        path.unlink(missing_ok=True)
    skew = max(began - stamp, stamp - ended, 0.0)
    detail = f"{skew:.2f} s from the shared folder's server"
    return Finding(name="clock", passed=skew <= SKEW_S, detail=detail, figures={"clock_skew_s": skew})


def local_disk(site: Site) -> Finding:
    """The local disk can be written, gives back what was written, and has room."""
    return _disk("local_disk", site.local, FREE_BYTES)


def shared_folder(site: Site) -> Finding:
    """The same of the shared folder, without a demand on its room."""
    if site.shared is None:
        return Finding(name="shared_folder", passed=None, detail="none is known")
    return _disk("shared_folder", site.shared, 0)


def image(site: Site) -> Finding:
    """The container image is there."""
    if site.image is None:
        return Finding(name="image", passed=None, detail="none is known")
    there = site.image.exists()
    return Finding(name="image", passed=there, detail=f"{site.image}" + ("" if there else " is not there"))


def _disk(name: str, folder: Path, room: int) -> Finding:
    path = folder / f".disk-{secrets.token_hex(6)}"
    data = secrets.token_bytes(1 << 20) * (PROBE_BYTES >> 20)
    try:
        space = os.statvfs(folder)
        free = space.f_bavail * space.f_frsize
        began = time.monotonic()
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        took_s = time.monotonic() - began
        same = path.read_bytes() == data
    except OSError as error:
        return Finding(name=name, passed=False, detail=f"{folder} cannot be written: {error.strerror}")
    finally:
        path.unlink(missing_ok=True)
    figures = {f"{name}_free_bytes": float(free), f"{name}_bytes_per_s": PROBE_BYTES / max(took_s, 1e-6)}
    if not same:
        return Finding(name=name, passed=False, detail=f"{folder} gave back other bytes than written", figures=figures)
    if free < room:
        detail = f"{folder} has {free / 2**30:.2f} GiB free, {room / 2**30:.0f} GiB are needed"
        return Finding(name=name, passed=False, detail=detail, figures=figures)
    detail = f"{folder}: {figures[f'{name}_bytes_per_s'] / 1e6:.0f} MB/s, {free / 2**30:.1f} GiB free"
    return Finding(name=name, passed=True, detail=detail, figures=figures)


def count_of(text: str) -> int:
    """CPUs of ``0-3,8``."""
    ends = [part.split("-") for part in text.strip().split(",") if part]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
