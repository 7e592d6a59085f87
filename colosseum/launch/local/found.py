"""The processes of a run on this machine, as the kernel knows them: never by a number that somebody wrote down.

A process id is given out again after a while. The launcher and every rank lead a session of their own and were started
with ``COLOSSEUM_RUN``; both are read from /proc.
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
class Found:
    pid: int
    is_rank: bool


def processes_of(run: RunDir) -> list[Found]:
    """The launcher and the ranks of a run that live now."""
    return processes().get(run.root.resolve(), [])


def processes() -> dict[Path, list[Found]]:
    """Those of every run on this machine, by run folder; only the user's own processes."""
    found: dict[Path, list[Found]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if not entry.isdecimal():
            continue
        with suppress(OSError):  # it has ended, or is another user's
            variables = Path("/proc", entry, "environ").read_bytes().split(b"\0")
            named = [v.removeprefix(RUN_MARK) for v in variables if v.startswith(RUN_MARK)]
            if named and os.getsid(int(entry)) == int(entry):
                is_rank = any(v.startswith(b"RANK=") for v in variables)
                found.setdefault(Path(os.fsdecode(named[0])), []).append(Found(int(entry), is_rank))
    return found


def stop(run: RunDir, margin_s: float) -> bool:
    """The ranks save and leave; those that have not after ``margin_s`` seconds are killed. True = none had to be."""
    found = processes_of(run)
    launchers = [p for p in found if not p.is_rank]
    for process in launchers or found:  # the launcher passes it on; ranks without one are asked themselves
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
