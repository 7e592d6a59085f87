"""A rank that makes no progress: every rank writes the stack of its threads, then the attempt is ended as hung.

All ranks wait for one another in collectives, so when one stops all of them stop, and each one's own watchdog sees it.
"""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from colosseum.rundir import AttemptDir

EXIT_HANG = 70
"""An attempt that may be retried (docs/contracts.md: anything but 0, 75 and 76)."""
POLL_S = 0.5
GRACE_S = 5.0
"""For the other ranks to write their stacks before the first one's exit ends the job."""
LAST_RESORT_S = 60.0
"""After the watchdog should have acted: a thread that holds the interpreter's lock keeps it from running."""


class Watchdog:
    """Watches from ``start`` to ``stop`` that ``beat`` is called at least every ``timeout_s`` seconds."""

    def __init__(
        self, attempt: AttemptDir, rank: int, timeout_s: float, last_saved_step: Callable[[], int | None]
    ) -> None:
        self._attempt, self._rank, self._timeout_s = attempt, rank, timeout_s
        self._last_saved_step = last_saved_step
        self._step = 0
        self._doing = "starting"
        self._seen = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self.beat(self._step, self._doing)
        self._thread.start()

    def beat(self, step: int, doing: str) -> None:
        """Progress was made; ``step`` and ``doing`` (``training``, ``saving``, …) are reported if it is the last."""
        self._step, self._doing, self._seen = step, doing, time.monotonic()
        faulthandler.dump_traceback_later(self._timeout_s + LAST_RESORT_S, exit=True)

    def stop(self) -> None:
        self._stopped.set()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self._stopped.wait(min(POLL_S, self._timeout_s / 4)):
            if time.monotonic() - self._seen > self._timeout_s:
                self._end()
                return

    def _end(self) -> None:
        with suppress(OSError):  # a full disk must not keep a hung job alive
            path = dump_stacks(self._attempt, self._rank)
            self._attempt.write_outcome(
                "hang",
                retry=True,
                step=self._step,
                last_saved_step=self._last_saved_step(),
                rank=self._rank,
                reason=f"no progress for {self._timeout_s:g} s while {self._doing} at step {self._step}; "
                f"stacks of all ranks are in {path.parent}",
            )
        if not self._stopped.wait(GRACE_S):
            os._exit(EXIT_HANG)


def dump_stacks(attempt: AttemptDir, rank: int) -> Path:
    """Writes the stacks of this process's threads to ``stacks/rank-00000.txt``; the file."""
    attempt.stacks.mkdir(exist_ok=True)
    path = attempt.stacks / f"rank-{rank:05d}.txt"
    with path.open("w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.flush()
        os.fsync(file.fileno())
    return path
