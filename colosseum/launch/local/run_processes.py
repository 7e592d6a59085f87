"""The processes of a run on this machine, found in /proc: never by a recorded process id.

The kernel reuses process ids. The launcher and every rank are session leaders and have ``COLOSSEUM_RUN`` in their
environment; both facts are read from /proc.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from colosseum.rundir import RunDir

POLL_S = 0.2
RUN_MARK = b"COLOSSEUM_RUN="
KILLED_WITHIN_S = 10.0
"""The launcher writes the outcome after its ranks were killed."""


@dataclass(frozen=True, slots=True)
class RunProcess:
    pid: int
    is_rank: bool


def processes_of(run: RunDir) -> list[RunProcess]:
    """The running launcher and ranks of a run."""
    return processes().get(run.root.resolve(), [])


def processes() -> dict[Path, list[RunProcess]]:
    """The processes of all runs on this machine, by run folder; only the user's own processes."""
    found: dict[Path, list[RunProcess]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if not entry.isdecimal():
            continue
        with suppress(OSError):  # it has ended, or is another user's
            variables = Path("/proc", entry, "environ").read_bytes().split(b"\0")
            named = [v.removeprefix(RUN_MARK) for v in variables if v.startswith(RUN_MARK)]
            if named and os.getsid(int(entry)) == int(entry):
                is_rank = any(v.startswith(b"RANK=") for v in variables)
                found.setdefault(Path(os.fsdecode(named[0])), []).append(RunProcess(int(entry), is_rank))
    return found


def stop(run: RunDir, margin_s: float) -> bool:
    """The ranks save and exit; those still running after ``margin_s`` seconds are killed. True = none was killed."""
    found = processes_of(run)
    launchers = [p for p in found if not p.is_rank]
    for process in launchers or found:  # the launcher forwards it; ranks without a launcher get it directly
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGUSR1)
    if _ended(run, margin_s):
        return True
    for process in processes_of(run):
        if process.is_rank or not launchers:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if not _ended(run, KILLED_WITHIN_S):
        for process in processes_of(run):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return False


def _ended(run: RunDir, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while processes_of(run):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
