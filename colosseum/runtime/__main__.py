"""``python -m colosseum.runtime BUNDLE``: one rank of a run. Launchers start it once a rank."""

from __future__ import annotations

import faulthandler
import sys
import warnings
from pathlib import Path


def main(words: list[str]) -> int:
    if len(words) != 1:
        sys.stderr.write("usage: python -m colosseum.runtime BUNDLE\n")
        return 2
    faulthandler.enable()  # a crash in native code leaves the stack it came from
    # Notices of libraries about their own future fill a log that somebody reads at night.
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module=r"(megatron|torch|transformer_engine)\.")
    # Before the imports, which take seconds: a rank that is asked to stop meanwhile must not die of it.
    from colosseum.runtime.stopping import StopSignal

    stop = StopSignal()
    from colosseum.runtime import device

    device.compile_nothing_on_cpu()
    from colosseum.runtime.job import main as run

    return run(Path(words[0]), stop)


# Guarded: an asynchronous save starts processes that import this module.
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
