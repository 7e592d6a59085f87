"""A start that no launcher made: ``torchrun … -m colosseum.runtime bundle`` or ``python -m …``, typed in a run folder.

The first rank does what launchers do: it takes the run folder and begins an attempt, or says whose the folder is.
"""

from __future__ import annotations

import os
import sys

import torch.distributed as dist

from colosseum import owner
from colosseum.rundir import EXIT_COMPLETE, EXIT_FINAL, RunDir


def is_by_hand() -> bool:
    return "COLOSSEUM_ATTEMPT" not in os.environ


def attempt_of(run: RunDir, rank: int) -> int:
    """The attempt's number, which ranks but the first know only once all have ``agreed``.

    Leaves the process where the run is complete (every rank finds that out: none is left to wait for others) or has an
    owner that lives (then torchrun ends the other ranks).
    """
    if run.is_complete():
        sys.stderr.write(f"{run.root.name} is complete: nothing to do\n")
        sys.exit(EXIT_COMPLETE)
    if rank:
        return (run.attempt_numbers() or [0])[-1]
    if whose := owner.take(run.root, owner.this_process()):
        sys.stderr.write(f"{whose}\n")
        sys.exit(EXIT_FINAL)
    return run.begin_attempt_here()[0]


def agreed(number: int) -> int:
    """The first rank's number, once all ranks have joined."""
    numbers = [number]
    dist.broadcast_object_list(numbers, src=0)
    return numbers[0]
