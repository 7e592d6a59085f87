"""The records of a run folder, one writer and one parser each: owner, outcome, attempt environment, metrics row, event.

Standard library only, Python 3.6 or later (so no ``from __future__ import annotations``): a copy is in every bundle,
for the job script, which runs it with a batch host's own python3, and for ``engines/start.py`` in an engine's image.
Files that others may have written are opened by ``reading.py`` (login node) or ``jobscript.py`` (batch host); what
they read is parsed here.

Whatever is parsed may be incomplete, damaged or written by somebody else: types are checked, sizes are bounded, control
characters become spaces. A line that is no record is None; no parser raises.
"""

import errno
import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO, Dict, NamedTuple  # noqa: UP035

OUTCOME_KINDS = ("completed", "saved", "data_error", "numeric_error", "config_error", "hang", "crash")
CHECKPOINT_MARK = "colosseum.json"
LATEST_FILE = "latest_checkpointed_iteration.txt"
MAX_TEXT = 4096
MAX_NAME = 100
MAX_ITEMS = 4096
"""Of a list or of an object inside a record."""
MAX_WHOLE = 10**15
MAX_PID = 1 << 22
"""Of Linux."""
JOB_ID = re.compile(r"[1-9][0-9]{0,17}(_[0-9]{1,9})?\Z")
"""A process id, a Slurm job or ARRAY_INDEX: never a word or number that means many (`--me`, -1, 0)."""
_STEP = re.compile(r"[0-9]{1,15}\Z")


class Owner(NamedTuple):
    """Who owns a run folder, from then on: ``owners/NNNNNN``. What it is to own one is said by ``owner.py``."""

    scheduler: str
    """slurm: a Slurm job, whose script is the process; local: a process that was started on a machine."""
    slurm_job: str
    """The Slurm job that it is, or in whose allocation it runs; "" = none."""
    cluster: str
    """Slurm's name of its cluster, "" = not known."""
    restart: int
    """Slurm's count of requeues of the job."""
    host: str
    boot_id: str
    """Of the kernel: another one each time the machine starts."""
    pid_namespace: str
    """Processes of another one (a container) have other numbers."""
    pid: int
    start_ticks: int
    """When the process started, in clock ticks since the boot: two processes with one number differ in it."""
    time_unix_s: float

    @property
    def job_id(self) -> str:
        """As in submissions.jsonl and env.json."""
        return self.slurm_job if self.scheduler == "slurm" else str(self.pid)

    def to_line(self) -> str:
        return line_of(dict(self._asdict()))

    @classmethod
    def from_data(cls, data: "dict[str, Any] | None") -> "Owner | None":
        if data is None or data.get("scheduler") not in ("slurm", "local"):
            return None
        names = ("slurm_job", "cluster", "host", "boot_id", "pid_namespace")
        job, cluster, host, boot_id, namespace = (text(data.get(name), MAX_NAME) for name in names)
        restart, pid, start = (whole(data.get(name)) for name in ("restart", "pid", "start_ticks"))
        when = number(data.get("time_unix_s"))
        if restart is None or pid is None or not 0 < pid <= MAX_PID or start is None or when is None or not host:
            return None
        if (job or data["scheduler"] == "slurm") and not JOB_ID.match(job):
            return None
        return cls(data["scheduler"], job, cluster, restart, host, boot_id, namespace, pid, start, when)

    @classmethod
    def from_line(cls, line: "str | bytes") -> "Owner | None":
        return cls.from_data(parse_object(line))


class Outcome(NamedTuple):
    """How an attempt ended: ``attempts/NNN/outcome.json``."""

    kind: str
    """One of OUTCOME_KINDS."""
    retry: bool
    step: int = 0
    last_saved_step: "int | None" = None
    rank: "int | None" = None
    reason: str = ""

    def to_line(self) -> str:
        return line_of(dict(self._asdict()))

    @classmethod
    def from_data(cls, data: "dict[str, Any] | None") -> "Outcome | None":
        if data is None or data.get("kind") not in OUTCOME_KINDS or not isinstance(data.get("retry"), bool):
            return None
        step, saved, rank = (data.get(name) for name in ("step", "last_saved_step", "rank"))
        if any(value is not None and whole(value) is None for value in (step, saved, rank)):
            return None
        return cls(data["kind"], data["retry"], step or 0, saved, rank, text(data.get("reason")))

    @classmethod
    def from_line(cls, line: "str | bytes") -> "Outcome | None":
        return cls.from_data(parse_object(line))

    @classmethod
    def damaged(cls, why: str) -> "Outcome":
        """Of an attempt whose outcome.json is there and is none: what the ranks reported is lost."""
        return cls("crash", True, reason="nobody knows how it ended: " + why)


class AttemptEnvironment(NamedTuple):
    """How an attempt began: ``attempts/NNN/env.json``."""

    attempt: int
    saved_step: int
    """The checkpoint it resumes from, 0 = none."""
    job_id: str
    restart: int
    """Slurm's count of requeues of the job."""
    nodes: str
    """In Slurm's short form: node[01-04]."""
    time_unix_s: float

    def to_line(self) -> str:
        return line_of(dict(self._asdict()))

    @classmethod
    def from_data(cls, data: "dict[str, Any] | None") -> "AttemptEnvironment | None":
        if data is None or any(whole(data.get(name)) is None for name in ("attempt", "saved_step")):
            return None
        restart, when = whole(data.get("restart", 0)), number(data.get("time_unix_s"))
        if restart is None or when is None:
            return None
        job, nodes = text(data.get("job_id"), MAX_NAME), text(data.get("nodes"))
        return cls(data["attempt"], data["saved_step"], job, restart, nodes, when)

    @classmethod
    def from_line(cls, line: "str | bytes") -> "AttemptEnvironment | None":
        return cls.from_data(parse_object(line))


class MetricsRow(NamedTuple):
    """One line of metrics.jsonl."""

    kind: str
    """train, val, save or load."""
    step: int
    attempt: int
    time_unix_s: float
    fields: Dict[str, Any]  # noqa: UP006
    """Its figures by name, in base units; what is not finite is None."""

    def to_line(self) -> str:
        return line_of(self.as_row())

    def as_row(self) -> "dict[str, Any]":
        """The line's own object."""
        row = {"kind": self.kind, "step": self.step, "attempt": self.attempt, "time_unix_s": self.time_unix_s}
        row.update((name, value) for name, value in self.fields.items() if name not in row)
        return row

    @classmethod
    def from_data(cls, data: "dict[str, Any] | None") -> "MetricsRow | None":
        if data is None or whole(data.get("step")) is None:
            return None
        kind, attempt = text(data.get("kind"), MAX_NAME), whole(data.get("attempt", 0))
        when = number(data.get("time_unix_s", 0.0))
        if not kind or attempt is None or when is None:
            return None
        own = ("kind", "step", "attempt", "time_unix_s")
        fields = {name: value for name, value in (plain(data) or {}).items() if name not in own}
        return cls(kind, data["step"], attempt, when, fields)

    @classmethod
    def from_line(cls, line: "str | bytes") -> "MetricsRow | None":
        return cls.from_data(parse_object(line))


class Event(MetricsRow):
    """One line of events.jsonl; its kind says what happened: loss_spike, checkpoint_passed_over, …"""


def text(value: Any, limit: int = MAX_TEXT) -> str:
    """A text on one line without control characters, cut at ``limit``; "" for what is no text."""
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else " " for c in value[:limit])


def whole(value: Any) -> "int | None":
    """A count from 0 to 10^15, else None; true and false are none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WHOLE else None


def number(value: Any) -> "float | None":
    """A finite number, else None; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
        return None
    return float(value) if math.isfinite(value) else None


def plain(value: Any, depth: int = 3) -> Any:
    """A value as a record may hold it: None, bool, finite number, text, and lists and objects of these, bounded."""
    if value is None or isinstance(value, bool) or number(value) is not None:
        return value
    if isinstance(value, str):
        return text(value)
    if depth and isinstance(value, list):
        return [plain(item, depth - 1) for item in value[:MAX_ITEMS]]
    if depth and isinstance(value, dict):
        names = list(value)[:MAX_ITEMS]
        return {text(name, MAX_NAME): plain(value[name], depth - 1) for name in names}
    return None


def parse_object(data: "str | bytes") -> "dict[str, Any] | None":
    """A JSON object, or None: no UTF-8, no JSON, too deep, or something else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading, and never waits for a writer.

    Raises:
        OSError: there is none, it may not be read, or (EINVAL) it is no regular file.
    """
    descriptor = os.open(str(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return os.fdopen(descriptor, "rb")


def saved_steps(checkpoints: Path) -> "list[int]":
    """Steps with a finished checkpoint of ours (its colosseum.json is written last), ascending."""
    found = (p for p in checkpoints.glob("iter_*") if _STEP.match(p.name[5:]))
    return sorted(int(p.name[5:]) for p in found if (p / CHECKPOINT_MARK).is_file())


def write_first(path: Path, line: str) -> bool:
    """Writes a file whole unless it exists: the first writer wins. True if this call wrote it.

    A complete temporary file is linked to its name: a reader never sees half a document, and link() is exclusive on
    Lustre and NFS, too.
    """
    temporary = path.parent / f".{path.stem}-{os.getpid()}-{os.urandom(4).hex()}"
    with temporary.open("x") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(str(temporary), str(path))
        return True
    except FileExistsError:
        # On NFS the reply to a successful link can be lost; the client asks again, and the reply is that it exists.
        return temporary.stat().st_nlink == 2
    finally:
        temporary.unlink()


def append(path: Path, line: str) -> None:
    """Appends one line with one write(), so that lines of two writers never mix.

    Raises:
        OSError: it could not be written whole.
    """
    data = line.encode()
    descriptor = os.open(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        written = os.write(descriptor, data)
    finally:
        os.close(descriptor)
    if written != len(data):
        raise OSError(f"{path}: only {written} of {len(data)} bytes of a line were written; is the disk full?")


def line_of(row: "dict[str, Any]") -> str:
    """An object as a line of a JSON lines file.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n"
