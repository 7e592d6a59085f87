"""Units: base units inside (bytes, seconds, FLOP), formatted only when printed."""

from __future__ import annotations

import re

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_DURATION = re.compile(r"(?:(?P<d>\d{1,4})-)?(?P<h>\d{1,4}):(?P<m>[0-5]?\d):(?P<s>[0-5]?\d)")
_DURATION_PARTS = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?")
_COUNT = re.compile(r"(\d[\d_]{0,20}(?:\.\d{1,12})?)\s?([KMBTkmbt]?)")
DURATION_RULE = "a duration must be a string with a unit, such as 24h, 90m, 1d12h or 1-00:00:00"


def parse_duration_s(text: str) -> int:
    """Seconds in ``90m``, ``1d12h30m``, ``24h`` or Slurm's ``D-HH:MM:SS``.

    Raises:
        ValueError: the text is no duration, or none longer than zero.
    """
    if match := _DURATION.fullmatch(text):
        days, hours, minutes, seconds = (int(match[g] or 0) for g in "dhms")
    elif text and (match := _DURATION_PARTS.fullmatch(text)):
        days, hours, minutes, seconds = (int(g or 0) for g in match.groups())
    else:
        raise ValueError(DURATION_RULE)
    total = days * 86400 + hours * 3600 + minutes * 60 + seconds
    if total <= 0:
        raise ValueError(DURATION_RULE)
    return total


def format_duration(seconds: float) -> str:
    """``12.3 s``, ``4 m 05 s``, ``3 h 20 m``, ``17.2 days``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} m {int(seconds % 60):02d} s"
    if seconds < 2 * 86400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} m"
    return f"{seconds / 86400:.1f} days"


def format_rounded(n: float) -> str:
    """Three figures and zeros: ``532,000``."""
    return f"{float(f'{n:.3g}'):,.0f}"


def slurm_time(seconds: int) -> str:
    """Slurm's ``D-HH:MM:SS``."""
    days, rest = divmod(seconds, 86400)
    return f"{days}-{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"


def format_bytes(n: float) -> str:
    """``512 B``, ``3.2 MiB``, ``71.4 GiB``."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(n) >= unit:
            return f"{n / unit:.1f} {name}"
    return f"{n:.0f} B"


def format_count(n: float) -> str:
    """``950``, ``12.5K``, ``341.0B``, ``1.2T``."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(n) >= unit:
            return f"{n / unit:.1f}{name}"
    return f"{n:g}"


def parse_count(text: str) -> int:
    """The number in ``950``, ``12.5K``, ``341B``, ``2.5T``.

    Raises:
        ValueError: the text is no such number.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError("must be a number such as 950, 12.5K, 341B or 2.5T")
    return round(float(match[1].replace("_", "")) * {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[match[2].upper()])
