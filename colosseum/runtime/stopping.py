"""The request to save and leave, as launchers send it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopSignal:
    """Set by the first SIGTERM or SIGUSR1; the loop looks at it after each step.

    A shakedown names the step after which its first attempt leaves: a signal would come after the end of a fast run.
    """

    def __init__(self) -> None:
        self.received = False
        self._waking: int | None = None
        self._last_step = int(os.environ.get("COLOSSEUM_STOP_AFTER_STEP", "0"))
        for number in SIGNALS:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = True

    def leave_at_once(self, leave: Callable[[], None]) -> None:
        """Until ``leave_after_steps``, a signal calls ``leave`` in a thread of its own.

        A rank that waits for others in native code runs no Python handler in its main thread.
        """
        reading, self._waking = os.pipe()
        os.set_blocking(self._waking, False)
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)

        def watch() -> None:
            with os.fdopen(reading, "rb", buffering=0) as pipe:
                while data := pipe.read(64):
                    if any(number in SIGNALS for number in data):
                        leave()

        threading.Thread(target=watch, name="leave-at-once", daemon=True).start()
        if self.received:
            leave()

    def leave_after_steps(self) -> None:
        """From now on a signal is heard after the step under way, whose state is saved."""
        if self._waking is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._waking)  # ends the thread
            self._waking = None

    def after(self, step: int) -> bool:
        """Whether to save and leave after a step."""
        return self.received or step == self._last_step
