"""The processes of a run on this machine, as the kernel knows them: never by a number that somebody wrote down alone.

Those that lead a session and were started with ``COLOSSEUM_RUN``, and the owner's, by its number and start time.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from colosseum import owner
from colosseum.launch.schedulers.base import Say
from colosseum.owner import RunProcess
from colosseum.records import Owner
from colosseum.rundir import RunDir
from colosseum.units import format_duration

POLL_S = 0.2
SAY_EVERY_S = 10.0
KILLED_WITHIN_S = 10.0
"""The launcher writes the outcome after its ranks were killed."""


def processes_of(run: RunDir) -> list[RunProcess]:
    """The launcher and the ranks of a run that live now."""
    return processes({run: owner.newest(run.root)[1]})[run]


def processes(owners: Mapping[RunDir, Owner | None]) -> dict[RunDir, list[RunProcess]]:
    """Those of each run; /proc is looked at once for all."""
    marked = owner.processes()
    found = {}
    for run, holder in owners.items():
        its = list(marked.get(str(run.root.resolve()), ()))
        if holder is not None and holder.scheduler == "local" and holder.pid not in {p.pid for p in its}:
            its += [RunProcess(holder.pid, False)] * (owner.lives(holder) is True and _works_in(holder.pid, run))
        found[run] = its
    return found


def _works_in(pid: int, run: RunDir) -> bool:
    """Whether a process was started in the run folder, or with its bundle; a record alone could name any process."""
    try:
        place = Path("/proc", str(pid), "cwd").readlink()
        words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    root = run.root.resolve()
    return place == root or any((place / os.fsdecode(word)).resolve() == root / run.bundle.name for word in words)


def stop(run: RunDir, margin_s: float, say: Say) -> bool:
    """The ranks save and leave; those that have not after ``margin_s`` seconds are killed. True = none had to be."""
    found = processes_of(run)
    launchers = [p for p in found if not p.is_rank]
    for process in launchers or found:  # the launcher passes it on; ranks without one are asked themselves
        _signal(process.pid, signal.SIGUSR1)
    if _ended(run, margin_s, say):
        return True
    for process in processes_of(run):
        if process.is_rank or not launchers:
            _signal(process.pid, signal.SIGKILL)
    if not _ended(run, KILLED_WITHIN_S):
        for process in processes_of(run):
            _signal(process.pid, signal.SIGKILL)
    return False


def _signal(pid: int, number: int) -> None:
    """KILL goes to all that a session's leader started, if it is one; what was typed in a shell is no leader."""
    with suppress(ProcessLookupError):
        group = number == signal.SIGKILL and os.getpgid(pid) == pid
        (os.killpg if group else os.kill)(pid, number)


def _ended(run: RunDir, within_s: float, say: Say | None = None) -> bool:
    began = time.monotonic()
    told_s = -SAY_EVERY_S
    while processes_of(run):
        waited_s = time.monotonic() - began
        if waited_s > within_s:
            return False
        if say and waited_s - told_s >= SAY_EVERY_S:
            told_s = waited_s
            told, limit = format_duration(int(waited_s)), format_duration(within_s)
            say(f"waiting for the ranks to save: {told} of at most {limit}")
        time.sleep(POLL_S)
    return True
