"""What a scheduler is to the rest of the house: it starts the job of a run folder and says what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from colosseum.rundir import RunDir

if TYPE_CHECKING:
    from colosseum.recipe.schema import Cluster, Recipe

Phase = Literal["waiting", "running", "completed", "failed", "cancelled", "unknown"]
ENDED: frozenset[Phase] = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What a scheduler knows of one job."""

    job_id: str
    phase: Phase
    detail: str = ""
    """The scheduler's own word for the state, in plain English where that says more: why it waits, how it ended."""
    restarts: int = 0
    nodes: str = ""
    start_unix_s: float | None = None
    end_unix_s: float | None = None
    """When it ended; of a running job, when its time limit ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One line of submissions.jsonl."""

    scheduler: Literal["slurm", "local"]
    job_id: str
    argv: tuple[str, ...]
    time_unix_s: float


class Scheduler(Protocol):
    """Slurm or this machine's processes."""

    def check(self, run: RunDir, recipe: Recipe) -> str:
        """What the scheduler says of the job before it is submitted.

        Raises:
            RefusedInput: it would never start.
            EnvironmentFault: the scheduler cannot be reached.
        """
        ...

    def submit(self, run: RunDir, *, after: Sequence[str] = ()) -> Submission:
        """Starts ``bundle/`` of a run folder, once all jobs ``after`` have ended well."""
        ...

    def states(self, job_ids: Sequence[str]) -> Mapping[str, JobState]:
        """The state of each job, by one question however many they are; of phase unknown what it has forgotten."""
        ...

    def cancel(self, job_id: str) -> None:
        """Ends a job now; what was not saved is lost."""
        ...

    def save_and_restart(self, job_id: str) -> None:
        """A running job saves, ends and starts again."""
        ...


def scheduler_of(cluster: Cluster | Literal["slurm", "local"]) -> Scheduler:
    """The scheduler of a cluster."""
    kind = cluster if isinstance(cluster, str) else cluster.scheduler
    if kind == "slurm":
        from colosseum.launch.slurm.commands import SlurmScheduler

        return SlurmScheduler()
    from colosseum.launch.local.processes import LocalScheduler

    return LocalScheduler()
