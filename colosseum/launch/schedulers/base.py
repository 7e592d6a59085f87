"""The Scheduler protocol: starts the job of a run folder and reports its state; a Queue or a Foreground."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from colosseum.rundir import RunDir

if TYPE_CHECKING:
    from colosseum.recipe.cluster import Cluster
    from colosseum.recipe.schema import Recipe

Phase = Literal["waiting", "running", "completed", "failed", "cancelled", "unknown"]
ENDED: frozenset[Phase] = frozenset({"completed", "failed", "cancelled"})
Show = Callable[[Mapping[str, Any]], None]
"""Is given each new row of metrics.jsonl."""
Say = Callable[[str], None]
"""Is given a sentence for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What a scheduler knows of one job."""

    job_id: str
    phase: Phase
    detail: str = ""
    """The scheduler's reason for the state in plain English: why it waits, how it ended."""
    restarts: int = 0
    nodes: str = ""
    start_unix_s: float | None = None
    end_unix_s: float | None = None
    """When it ended; of a running job, when its time limit ends it."""
    asked: bool = True
    """False: nobody who knows could be asked, ``detail`` says why; the phase is unknown."""
    folder: str = ""
    """The working folder of its script; "" = not known."""
    script: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One line of submissions.jsonl."""

    scheduler: str
    """A name of the registry."""
    job_id: str
    argv: tuple[str, ...]
    time_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSize:
    """What a job that is no training run takes."""

    nodes: int = 1
    ranks: int = 1
    """Processes on each node."""
    gpus: int = 0
    """On each node."""


ONE_PROCESS = JobSize()


class Scheduler(Protocol):
    """What both kinds do."""

    def check(self, run: RunDir, recipe: Recipe) -> str:
        """What the scheduler says of the job before it is submitted.

        Raises:
            RefusedInput: it would never start.
            EnvironmentFault: the scheduler cannot be reached.
        """
        ...

    def submit(self, run: RunDir, *, after: Sequence[str] = ()) -> Submission:
        """Starts ``bundle/`` of a run folder, once all jobs ``after`` have succeeded."""
        ...

    def states(self, job_ids: Sequence[str]) -> Mapping[str, JobState]:
        """The state of each job, with one query for all; phase unknown for jobs that it no longer knows."""
        ...


@runtime_checkable
class Queue(Scheduler, Protocol):
    """Jobs wait for resources and for one another, and continue after the command that submitted them has ended."""

    def cancel(self, job_id: str) -> None:
        """Ends a job; its ranks may save within ``grace_s``, what was not saved is lost."""
        ...

    def grace_s(self) -> float | None:
        """Seconds that the ranks of a job have from ``cancel`` on before they are killed; None = not known."""
        ...

    def save_and_restart(self, job_id: str) -> None:
        """A running job saves, ends and starts again.

        Raises:
            RefusedInput: the job is just ending.
        """
        ...

    def in_folders(self, folders: Collection[Path]) -> Mapping[Path, Sequence[str]]:
        """The user's jobs of bundle scripts that wait or run in each of the folders, also those submitted by hand."""
        ...

    def submit_array(self, folder: Path, script: str, count: int, at_once: int | None) -> list[Submission]:
        """``count`` jobs of a script in ``folder``, each knows its index; the submission of each.

        Args:
            at_once: so many of them run at the same time (None = no limit).

        Raises:
            RefusedInput: they would never start.
        """
        ...

    def array_option(self, count: int, at_once: int | None) -> str:
        """The option with which ``submit_array`` submits its script, to be shown."""
        ...

    def submit_script(
        self,
        run: RunDir,
        cluster: Cluster,
        name: str,
        command: str,
        *,
        minutes: int,
        after: Sequence[str] = (),
        size: JobSize = ONE_PROCESS,
        array: str = "",
    ) -> str:
        """A job with a time limit that runs a shell command in a folder, with its log; its id.

        Args:
            array: indices of a job array, such as 0-7%4; empty = a single job.
        """
        ...


@runtime_checkable
class Foreground(Scheduler, Protocol):
    """Jobs start at once, and the command that started them stays with them."""

    def submit(self, run: RunDir, *, after: Sequence[str] = (), script: str | None = None) -> Submission:
        """See ``Scheduler``; ``script`` is the text of another script than the bundle's.

        Raises:
            RefusedInput: a job ``after`` is still running.
        """
        ...

    def stop(self, run: RunDir, margin_s: float, say: Say) -> bool:
        """The run's processes save and leave; those that have not after ``margin_s`` seconds are killed.

        Args:
            say: receives a line about what is waited for, and how long.

        Returns:
            True if none had to be killed.
        """
        ...

    def follow(self, run: RunDir, job_id: str, show: Show, say: Say) -> bool:
        """Waits for a job that this process submitted; True if it was asked to stop meanwhile.

        Args:
            say: receives a message about what a signal does.
        """
        ...

    def work_through(self, starts: Sequence[Callable[[], str]], at_once: int, say: Say) -> bool:
        """Starts jobs in turn, so many at a time, and waits for the last; True if asked to stop: no more is started.

        Args:
            starts: each submits a job and returns its id.
            say: see ``follow``.
        """
        ...
