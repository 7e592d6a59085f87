"""Python's garbage collection between steps: inside a step it stalls this rank and all that wait for it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_STEPS = 100
"""Steps between two collections."""


@contextmanager
def manual() -> Iterator[None]:
    """Switches automatic collection off; what was built before is not scanned again."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def collect_after(step: int) -> None:
    """Call between steps."""
    if step % EVERY_STEPS == 0:
        gc.collect()
