"""The request to save and leave, as launchers send it."""

from __future__ import annotations

import os
import signal
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopSignal:
    """Set by the first SIGTERM or SIGUSR1; the loop looks at it after each step.

    A shakedown names the step after which its first attempt leaves: a signal would come after the end of a fast run.
    """

    def __init__(self) -> None:
        self.received = False
        self._last_step = int(os.environ.get("COLOSSEUM_STOP_AFTER_STEP", "0"))
        for number in SIGNALS:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = True

    def after(self, step: int) -> bool:
        """Whether to save and leave after a step."""
        return self.received or step == self._last_step
