"""All schedulers. Queries of jobs need no recipe code: that is why ``scripts.py`` is a separate module."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from colosseum.launch.local.processes import LocalScheduler
from colosseum.launch.schedulers.base import Foreground, Scheduler
from colosseum.launch.slurm.commands import SlurmScheduler

SCHEDULERS: Mapping[str, Callable[[], Scheduler]] = {"slurm": SlurmScheduler, "local": LocalScheduler}
"""By the name in ``cluster.scheduler``."""


def scheduler_of(name: str) -> Scheduler:
    """The scheduler of a name that the schema or ``SCHEDULERS`` has checked."""
    return SCHEDULERS[name]()


def this_machine() -> Foreground:
    """For what runs here whatever its cluster: rehearsals, ``bundle run``."""
    return LocalScheduler()
