"""The request to save and leave, as launchers send it."""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopSignal:
    """Set by the first SIGTERM or SIGUSR1; the loop looks at it after each step."""

    def __init__(self) -> None:
        self.received = False
        for number in SIGNALS:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = True
