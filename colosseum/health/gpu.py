"""GPUs as ``nvidia-smi`` and the kernel's log describe them. Field names differ between drivers: both are asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from colosseum.health import tools
from colosseum.health.finding import Finding, Site

FIELDS = (
    *("index", "uuid", "ecc.errors.uncorrected.volatile.total", "clocks_event_reasons.active", "temperature.gpu"),
    *("pcie.link.width.current", "pcie.link.width.max", "memory.used", "enforced.power.limit", "power.max_limit"),
    *("remapped_rows.pending", "remapped_rows.failure"),
)
OLDER = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
"""Names before driver 535."""
HARDWARE_SLOWDOWN = {0x8: "hardware slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}
"""Bits of the clocks event reasons (NVML) that mean a fault of the node; others are idle, power cap, settings."""
SOFTWARE_THERMAL = 0x20
HARDWARE_XIDS = {48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 121, 136, 140, 143, 154}
"""NVIDIA's Xid catalogue: memory, NVLink, bus and GSP faults. Others are most often an application's."""
RECENT_S = 86400.0
LEFT_OVER_BYTES = 1 << 30
HOT_C = 90


def gpus(site: Site) -> Finding:
    """Number, ECC, remapped rows, throttle state, PCIe width and memory in use."""
    if not Path("/proc/driver/nvidia").exists() and site.gpus is None:
        return Finding(name="gpus", passed=None, detail="no NVIDIA driver is loaded and no GPUs are expected")
    try:
        rows = _query()
    except tools.ToolFault as fault:
        lost = "No devices were found" in str(fault) or "lost" in str(fault)
        return Finding(name="gpus", passed=False if lost else None, detail=str(fault))
    return judge_gpus(rows, site.gpus)


def xids(site: Site) -> Finding:
    """Hardware Xids of the last day in the kernel's log."""
    try:
        text = tools.run("dmesg")
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (tools.ToolFault, OSError, ValueError) as fault:
        return Finding(name="xids", passed=None, detail=f"the kernel's log cannot be read: {fault}")
    return judge_xids(text, uptime)


def parse_query(text: str) -> list[dict[str, str]]:
    """Rows of ``nvidia-smi --query-gpu=… --format=csv,nounits``: the header says which fields this driver has."""
    lines = [line for line in text.splitlines() if "," in line]
    if not lines:
        return []
    names = [name.split("[")[0].strip() for name in lines[0].split(",")]
    newer = {old: new for new, old in OLDER.items()}
    names = [newer.get(name, name) for name in names]
    return [dict(zip(names, (cell.strip() for cell in line.split(",")), strict=False)) for line in lines[1:]]


def judge_gpus(rows: Sequence[Mapping[str, str]], expected: int | None) -> Finding:
    """What the rows of all GPUs say of the node."""
    faults, notes = [], []
    if expected is not None and len(rows) != expected:
        faults.append(f"{len(rows)} GPUs, {expected} expected")
    for row in rows:
        bad, odd = _judge(row)
        faults += [f"GPU {row.get('index', '?')}: {text}" for text in bad]
        notes += [f"GPU {row.get('index', '?')}: {text}" for text in odd]
    hottest = max((value for row in rows if (value := _number(row, "temperature.gpu")) is not None), default=0.0)
    ecc = sum(_number(row, "ecc.errors.uncorrected.volatile.total") or 0.0 for row in rows)
    figures = {"gpus": float(len(rows)), "gpu_hottest_c": hottest, "gpu_ecc_errors": ecc}
    if faults or notes:
        passed = False if faults else None
        return Finding(name="gpus", passed=passed, detail="; ".join([*faults, *notes]), figures=figures)
    return Finding(name="gpus", passed=True, detail=f"{len(rows)} GPUs, at most {hottest:.0f} C", figures=figures)


def judge_xids(text: str, uptime_s: float) -> Finding:
    """Codes in lines such as ``[ 12.5] NVRM: Xid (PCI:0000:65:00): 79, …``."""
    found: list[int] = []
    for line in text.splitlines():
        match = re.search(r"NVRM: Xid \([^)]*\): (\d+)", line)
        stamp = re.match(r"\s*\[\s*(\d+(?:\.\d+)?)\]", line)
        recent = stamp is None or uptime_s - float(stamp[1]) <= RECENT_S
        if match and recent:
            found.append(int(match[1]))
    hardware = sorted({code for code in found if code in HARDWARE_XIDS})
    figures = {"xids": float(len(found))}
    if hardware:
        return Finding(name="xids", passed=False, detail=f"Xid {', '.join(map(str, hardware))}", figures=figures)
    return Finding(name="xids", passed=True, detail="no hardware Xid in the last day", figures=figures)


def _query() -> list[dict[str, str]]:
    try:
        return parse_query(_ask(FIELDS))
    except tools.ToolFault as fault:
        if "not a valid field" not in str(fault):
            raise
    return parse_query(_ask([OLDER.get(name, name) for name in FIELDS]))


def _ask(fields: Sequence[str]) -> str:
    return tools.run("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,nounits")


def _judge(row: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Faults and warnings of one GPU."""
    faults, notes = [], []
    if any("GPU is lost" in cell or "Unknown Error" in cell for cell in row.values()):
        faults.append("it does not answer (lost)")
    if errors := _number(row, "ecc.errors.uncorrected.volatile.total"):
        faults.append(f"{errors:.0f} uncorrected ECC errors since the driver was loaded")
    if row.get("remapped_rows.failure", "").lower() in ("yes", "1"):
        faults.append("remapping a memory row failed")
    if row.get("remapped_rows.pending", "").lower() in ("yes", "1"):
        faults.append("a memory row waits to be remapped: the GPU must be reset")
    reasons = _bits(row.get("clocks_event_reasons.active", ""))
    faults += [name for bit, name in HARDWARE_SLOWDOWN.items() if reasons & bit]
    width, most = (_number(row, f"pcie.link.width.{name}") for name in ("current", "max"))
    if width is not None and most is not None and width < most:
        faults.append(f"PCIe x{width:.0f} instead of x{most:.0f}")
    temperature, used = _number(row, "temperature.gpu"), _number(row, "memory.used")
    if reasons & SOFTWARE_THERMAL or (temperature or 0) >= HOT_C:
        notes.append(f"slowed down by heat ({temperature or 0:.0f} C)")
    if used is not None and used * 2**20 > LEFT_OVER_BYTES:
        notes.append(f"{used / 1024:.1f} GiB in use: a process may be left over")
    limit, highest = _number(row, "enforced.power.limit"), _number(row, "power.max_limit")
    if limit is not None and highest is not None and limit < 0.98 * highest:
        notes.append(f"power limit {limit:.0f} W of {highest:.0f} W")
    return faults, notes


def _number(row: Mapping[str, str], name: str) -> float | None:
    """None for N/A, as ``[N/A]`` and ``[Not Supported]``."""
    try:
        return float(row.get(name, ""))
    except ValueError:
        return None


def _bits(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
