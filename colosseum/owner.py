"""One owner at a time: who may use a run folder, a Slurm job or a process, and whether the last one still lives.

Owners are numbered files (``owners/000001``, a ``records.Owner`` each) that are never changed or deleted; the highest
number counts. The next number is made by link(), which one taker alone wins, on Lustre and NFS too; no lock of the
file system is needed. Whether an owner lives is asked of Slurm, or of the machine where its process runs.

Standard library only, Python 3.6 or later: a copy is in every bundle, for the job script and a foreign engine's ranks.
"""

import os
import re
import socket
import subprocess
import time
from functools import lru_cache
from pathlib import Path
from subprocess import PIPE
from typing import Dict, List, NamedTuple  # noqa: UP035

from colosseum import records
from colosseum.records import Owner

FOLDER = "owners"
ENDS_WITHIN_S = 60.0
"""Slurm may take so long to clean up after a job that has ended."""
BY_HAND = "if it has ended, remove the folder owners/ of the run"
RUN_MARK = b"COLOSSEUM_RUN="
_NAME = re.compile(r"[0-9]{6,12}\Z")
_LAST = 10**12 - 1
_MAX_BYTES = 1 << 16


class Machine(NamedTuple):
    """What a process id means something on; see ``records.Owner``."""

    host: str
    boot_id: str
    pid_namespace: str


class RunProcess(NamedTuple):
    """A process of a run that lives on this machine."""

    pid: int
    is_rank: bool


def this_process(pid: int = 0) -> Owner:
    """The record of a process of this machine, ours if 0."""
    env, node = os.environ, os.environ.get("SLURMD_NODENAME")
    job = env.get("SLURM_JOB_ID", "") if node else ""  # on a node, where Slurm ends all processes of a job
    job = job if records.JOB_ID.match(job) else ""
    return _record("local", job, 0, pid or os.getpid())


def this_job(job: str, restart: int, pid: int) -> Owner:
    """The record of a Slurm job, by its script's process."""
    return _record("slurm", job, restart, pid)


def take(run: Path, mine: Owner) -> str:
    """Takes a run folder, before anything else in it is touched; "" = it is ours, else a sentence: whose it is."""
    try:
        (run / FOLDER).mkdir(exist_ok=True)
        while True:
            number, holder = newest(run)
            sentence = _of_others(run, number, holder, mine)
            if sentence:
                return sentence + "; nothing was started or changed"
            if records.write_first(run / FOLDER / f"{number + 1:06d}", mine.to_line()):
                return ""
    except OSError as error:
        return f"cannot write in {run / FOLDER}: {error.strerror}"


def held(run: Path) -> str:
    """Whose a run folder is, and why nobody else may use it, as a sentence; "" = it is free."""
    return _of_others(run, *newest(run), None)


def newest(run: Path) -> "tuple[int, Owner | None]":
    """The number and the record of the owner that counts; number 0 = there was none, None = it cannot be read."""
    return newest_in(run / FOLDER)


def newest_in(folder: Path) -> "tuple[int, Owner | None]":
    """As ``newest``, of the numbered records in a folder."""
    while True:
        try:
            names = [path.name for path in folder.iterdir() if _NAME.match(path.name)]
        except FileNotFoundError:
            return 0, None
        except OSError:
            return -1, None
        last = max(names, key=int, default="0")
        if int(last) in (0, _LAST):
            return int(last), None
        try:
            with records.open_regular(folder / last) as file:
                return int(last), Owner.from_line(file.read(_MAX_BYTES))
        except OSError:
            if os.path.lexists(str(folder / last)):
                return int(last), None
        time.sleep(0.01)  # it was removed meanwhile


def lives(owner: Owner) -> "bool | None":
    """Whether the owner's process lives; None = it cannot be seen from this machine."""
    here = _machine()
    if owner.host != here.host:
        return None
    if owner.boot_id != here.boot_id:
        return False  # the machine has started again since
    if owner.pid_namespace != here.pid_namespace:
        return None
    return _process_lives(owner.pid, owner.start_ticks)


def processes() -> "Dict[str, List[RunProcess]]":  # noqa: UP006
    """Launchers and ranks of all runs on this machine, by run folder; only the user's own processes.

    They lead a session of their own and were started with ``COLOSSEUM_RUN``; both are read from /proc, as a process id
    that somebody wrote down may be another's now.
    """
    found: Dict[str, List[RunProcess]] = {}  # noqa: UP006
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if not entry.isdigit():
            continue
        try:
            variables = Path("/proc", entry, "environ").read_bytes().split(b"\0")
            named = [v[len(RUN_MARK) :] for v in variables if v.startswith(RUN_MARK)]
            if named and os.getsid(int(entry)) == int(entry):
                is_rank = any(v.startswith(b"RANK=") for v in variables)
                found.setdefault(os.fsdecode(named[0]), []).append(RunProcess(int(entry), is_rank))
        except OSError:  # it has ended, or is another user's
            continue
    return found


def _of_others(run: Path, number: int, holder: "Owner | None", mine: "Owner | None") -> str:
    """Whose the run is if not free for ``mine``; "" = it is."""
    name = run.resolve().name
    if not number:
        return ""
    if holder is None:
        return f"{name} may have an owner: the newest record in owners/ cannot be read ({BY_HAND})"
    if mine is not None and _is_same_job(holder, mine):
        # One batch script at a time: a requeued job follows itself. In an allocation (salloc) two may be typed.
        twice = holder.restart == mine.restart and holder.pid != mine.pid and lives(holder)
        reason = "it is running" if twice else ""
    else:
        reason = _why_job(holder) if holder.scheduler == "slurm" else _why_process(run, holder)
    whom = f"job {holder.slurm_job}" if holder.scheduler == "slurm" else f"process {holder.pid} on {holder.host}"
    return f"{name} belongs to {whom}: {reason}" if reason else ""


def _is_same_job(one: Owner, other: Owner) -> bool:
    jobs = {(o.scheduler, o.slurm_job, o.cluster) for o in (one, other)}
    return len(jobs) == 1 and one.scheduler == "slurm"


def _why_process(run: Path, owner: Owner) -> str:
    """Why a process, or what it started, may still use the run folder; "" = all have ended."""
    alive = lives(owner)
    if alive is None:
        if owner.slurm_job and not _why_job(owner):
            return ""  # the job in whose allocation it ran has ended
        here = _machine().host
        there = f"on {owner.host}" if owner.host != here else "in the container that it was started in"
        return f"its processes cannot be seen from here ({here}); start it {there}, or {BY_HAND}"
    if alive:
        return "it is running"
    if owner.boot_id != _machine().boot_id:
        return ""
    ranks = [str(p.pid) for p in processes().get(str(run.resolve()), []) if p.is_rank]
    return f"it has ended, and its ranks (processes {', '.join(ranks)}) still run" if ranks else ""


def _why_job(owner: Owner) -> str:
    """Why a Slurm job may still use the run folder; "" = Slurm says that it has ended."""
    here = os.environ.get("SLURM_CLUSTER_NAME", "")
    if owner.cluster and here and owner.cluster != here:
        return f"it is of Slurm's cluster {owner.cluster}, which cannot be asked from {here} ({BY_HAND})"
    env = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}  # they hide states
    deadline = time.monotonic() + ENDS_WITHIN_S
    while True:
        try:
            words = ["squeue", "-h", "-j", owner.slurm_job, "-o", "%T"]
            asked = subprocess.run(words, env=env, stdout=PIPE, stderr=PIPE, timeout=60)  # noqa: UP022 - Python 3.6
        except (OSError, subprocess.TimeoutExpired):
            return f"squeue does not answer ({BY_HAND})"
        if asked.returncode:
            known = b"Invalid job id" not in asked.stderr
            return f"squeue does not answer ({BY_HAND})" if known else ""
        states = asked.stdout.decode("ascii", "replace").split()
        if not states:
            return ""
        if set(states) != {"COMPLETING"} or time.monotonic() > deadline:
            return f"it is {states[0].lower()}"
        time.sleep(2)


def _record(scheduler: str, job: str, restart: int, pid: int) -> Owner:
    cluster, start_ticks, now = os.environ.get("SLURM_CLUSTER_NAME", ""), _start_ticks(pid) or 0, int(time.time())
    return Owner(scheduler, job, cluster, restart, *_machine(), pid, start_ticks, now)


@lru_cache(maxsize=None)  # noqa: UP033 - Python 3.6
def _machine() -> Machine:
    try:
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - Python 3.6
    except OSError:
        namespace = ""
    return Machine(socket.gethostname(), _text("/proc/sys/kernel/random/boot_id").strip(), namespace)


def _process_lives(pid: int, start_ticks: int) -> bool:
    try:
        os.kill(pid, 0)  # asks, and signals nobody
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    started = _start_ticks(pid)
    return started is None or started == start_ticks  # None: /proc may hide other users' processes


def _start_ticks(pid: int) -> "int | None":
    """When a process started; 0 = it has ended and its parent has not looked yet, None = not known."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 20 or not fields[19].isdigit():
        return None
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
