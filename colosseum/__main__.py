"""``python -m colosseum`` and the command ``colosseum``: Ctrl-C is one word from the first moment on.

Python's own handler would print a traceback of whatever import it lands in. Imports nothing of ours at the top.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 130


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(EXIT_INTERRUPTED)


def main() -> int:
    """Imports the commands and runs one; its exit code."""
    theirs = signal.getsignal(signal.SIGINT)
    if theirs is signal.default_int_handler:  # else it is ignored, as under nohup
        signal.signal(signal.SIGINT, _leave)
    from colosseum.cli.main import main as command

    try:
        signal.signal(signal.SIGINT, theirs)  # commands end what they started
        return command()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
