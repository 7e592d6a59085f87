"""The names inside a run folder, and the shape of the lines written there. The only file that knows them."""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from colosseum import records
from colosseum.reading import Unreadable, read_bytes, rows
from colosseum.records import CHECKPOINT_MARK as CHECKPOINT_MARK
from colosseum.records import LATEST_FILE as LATEST_FILE
from colosseum.records import AttemptEnvironment, Outcome, whole
from colosseum.records import saved_steps as saved_steps

OutcomeKind = Literal["completed", "saved", "data_error", "numeric_error", "config_error", "hang", "crash"]

EXIT_COMPLETE = 0
EXIT_SAVED = 75
"""Stopped on request with the state saved: start me again (EX_TEMPFAIL)."""
EXIT_FINAL = 76
"""Do not start me again: data, NaN, config (EX_PROTOCOL)."""

_NUMBER = re.compile(r"[0-9]{1,15}")


def new_run_id(name: str, now: datetime | None = None) -> str:
    """``<UTC yyyymmdd-hhmmss>-<name>-<4 hex>``."""
    stamp = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{name}-{secrets.token_hex(2)}"


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths of one run; nothing is created by asking."""

    root: Path

    @property
    def bundle(self) -> Path:
        return self.root / "bundle"

    @property
    def submissions(self) -> Path:
        return self.root / "submissions.jsonl"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def fp8_scans(self) -> Path:
        return self.root / "fp8"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def data_cache(self) -> Path:
        """Index files of the samples' order; can be deleted between attempts."""
        return self.root / "data-cache"

    @property
    def references(self) -> Path:
        """Log-probabilities of a reference policy (DPO), by the hash of its weights and data."""
        return self.root / "references"

    @property
    def evaluations(self) -> Path:
        """Scores of its checkpoints (`evaluation/folder.py`)."""
        return self.root / "evaluations"

    @property
    def rehearsal(self) -> Path:
        return self.root / "rehearsal.json"

    @property
    def grown(self) -> Path:
        """The checkpoint to start from with this run's depth, where the gate expanded it (a folder as OUT of
        ``checkpoint expand``)."""
        return self.root / "grown"

    @property
    def converted(self) -> Path:
        """The checkpoint to begin from, where the gate converted another engine's."""
        return self.root / "converted"

    @property
    def continued(self) -> Path:
        """Links to another run's checkpoint, and its counters at 0: a foreign engine loads an optimizer from there."""
        return self.root / "continued"

    @property
    def gate(self) -> Path:
        """What the hand-over from the stage before found (`launch/campaigns/gate.py`)."""
        return self.root / "gate.json"

    @property
    def gate_conditions(self) -> Path:
        """Scores that the gate asks for (`launch/campaigns/conditions.py`)."""
        return self.root / "gate-conditions.json"

    @property
    def selected(self) -> Path:
        """Which of its checkpoints the next stage takes (`launch/runs/selected.py`); also in a sweep's folder."""
        return self.root / "selected.json"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    def attempt(self, n: int) -> AttemptDir:
        return AttemptDir(self.attempts / f"{n:03d}")

    def attempt_numbers(self) -> list[int]:
        """Attempts begun so far, ascending."""
        if not self.attempts.is_dir():
            return []
        return sorted(int(p.name) for p in self.attempts.iterdir() if _NUMBER.fullmatch(p.name))

    def attempt_of(self, job_id: str) -> AttemptDir | None:
        """The newest attempt that a job began, by its env.json; None = the job began none."""
        for n in reversed(self.attempt_numbers()):
            with suppress(FileNotFoundError, Unreadable):
                environment = AttemptEnvironment.from_line(read_bytes(self.attempt(n).env))
                if environment is not None and environment.job_id == job_id:
                    return self.attempt(n)
        return None

    def is_complete(self) -> bool:
        """Whether an attempt reached the last step."""
        outcomes = (self.attempt(n).read_outcome() for n in self.attempt_numbers())
        return any(o is not None and o.kind == "completed" for o in outcomes)

    def forgive_attempts(self) -> None:
        """Attempts so far no longer count towards a crash loop: somebody wants one more."""
        self.attempts.mkdir(exist_ok=True)
        (self.attempts / "count-from").write_text(f"{(self.attempt_numbers() or [-1])[-1] + 1}\n")

    def begin_attempt(self) -> tuple[int, AttemptDir]:
        """Creates the next attempt's folder; two starters never share one."""
        n = (self.attempt_numbers() or [-1])[-1] + 1
        while True:
            attempt = self.attempt(n)
            try:
                attempt.root.mkdir(parents=True)
                return n, attempt
            except FileExistsError:
                n += 1

    def begin_attempt_here(self) -> tuple[int, AttemptDir]:
        """``begin_attempt`` with env.json, as the job script of a cluster writes it, of this process."""
        number, attempt = self.begin_attempt()
        attempt.stacks.mkdir()
        saved = (saved_steps(self.checkpoints) or [0])[-1]
        environment = AttemptEnvironment(number, saved, str(os.getpid()), 0, socket.gethostname(), int(time.time()))
        records.write_first(attempt.env, environment.to_line())
        return number, attempt


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """One start of a run's job."""

    root: Path

    @property
    def env(self) -> Path:
        return self.root / "env.json"

    @property
    def outcome(self) -> Path:
        return self.root / "outcome.json"

    @property
    def room(self) -> Path:
        """Space held back for outcome.json."""
        return self.root / ".room"

    @property
    def stacks(self) -> Path:
        return self.root / "stacks"

    @property
    def nccl_traces(self) -> Path:
        """Prefix of the flight recorder's files, one a rank: the rank's number follows. job.bash knows it, too."""
        return self.stacks / "nccl_trace_rank_"

    def rank_log(self, rank: int) -> Path:
        return self.root / f"rank-{rank:05d}.log"

    def write_outcome(
        self,
        kind: OutcomeKind,
        *,
        retry: bool,
        step: int,
        last_saved_step: int | None,
        rank: int | None,
        reason: str,
    ) -> bool:
        """Writes outcome.json; the first writer wins. True if this call wrote it."""
        return records.write_first(self.outcome, Outcome(kind, retry, step, last_saved_step, rank, reason).to_line())

    def read_outcome(self) -> Outcome | None:
        """What outcome.json says; None if there is none. One that is damaged is a crash whose reason says so."""
        try:
            found = Outcome.from_line(read_bytes(self.outcome))
        except FileNotFoundError:
            return None
        except Unreadable as error:
            return Outcome.damaged(str(error))
        return found or Outcome.damaged(f"{self.outcome.name} holds no outcome")


def checkpoint_folder(checkpoints: Path, step: int) -> Path:
    """Megatron's own folder name of checkpoint ``step``."""
    return checkpoints / f"iter_{step:07d}"


def append_line(path: Path, row: dict[str, Any]) -> None:
    """Appends one JSON line with one write(), so that lines of two writers never mix."""
    records.append(path, records.line_of(row))


def read_lines(path: Path, holding: bytes = b"") -> Iterator[dict[str, Any]]:
    """The JSON lines of a file; a truncated line is skipped, a missing file and one that cannot be read are empty.

    Args:
        holding: only lines with these bytes are parsed.
    """
    with suppress(Unreadable):
        yield from rows(path, holding)


def latest_rows(path: Path, kind: str) -> list[dict[str, Any]]:
    """metrics.jsonl rows of one kind by step; steps repeat after a restart, the highest attempt's row is kept."""
    best: dict[int, dict[str, Any]] = {}
    for row in read_lines(path):
        step, attempt = whole(row.get("step")), whole(row.get("attempt", 0))
        if row.get("kind") != kind or step is None or attempt is None:
            continue
        old = best.get(step)
        if old is None or attempt >= old.get("attempt", 0):
            best[step] = row
    return [best[s] for s in sorted(best)]
