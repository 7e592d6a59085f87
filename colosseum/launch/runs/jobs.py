"""Jobs of run folders: their state from scheduler and folder together; requeue and cancel."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from colosseum.errors import EnvironmentFault, Fault, RefusedInput
from colosseum.launch.local.run_processes import processes
from colosseum.launch.schedulers.base import Foreground, JobState, Queue, Submission
from colosseum.launch.schedulers.registry import SCHEDULERS, scheduler_of
from colosseum.monitor.watch import UNKNOWN, Attempt, RunStatus, last_attempt, run_status
from colosseum.reading import Unreadable, tail
from colosseum.records import number, parse_object, text
from colosseum.rundir import RunDir

LIVE = ("waiting", "starting", "running")
JOB_ID = re.compile(r"[1-9][0-9]{0,17}(_[0-9]{1,9})?")
"""A process id, a Slurm job or ARRAY_INDEX: never a word or number that means many (`--me`, -1, 0)."""
RUN_NAME = re.compile(r"\d{8}-\d{6}-")
TAIL_BYTES = 1 << 20
"""Of submissions.jsonl: some thousand submissions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The newest job of a run."""

    run: RunDir
    submission: Submission
    state: JobState
    attempt: Attempt | None
    status: RunStatus
    unreadable: str = ""
    """Why the newest job cannot be determined; then ``submission`` has no job."""

    @property
    def word(self) -> str:
        """One of LIVE, complete, stopped, failed, cancelled, ended (unknown how), unreadable."""
        if self.unreadable:
            return "unreadable"
        phase, kind = self.state.phase, self._last.kind if self._last else None
        if phase == "waiting":
            return "waiting"
        if phase == "running":
            return "running" if self._last and self._heard_of_it else "starting"
        if kind == "completed":
            return "complete"
        if phase == "cancelled":
            return "cancelled"
        if kind == "saved":
            return "stopped"
        return "failed" if kind or phase == "failed" else "ended"

    @property
    def why(self) -> str:
        """Why it is so: the last attempt's own reason, else the scheduler's."""
        if self.unreadable:
            return self.unreadable
        if self.word in ("complete", "running", "starting"):
            return ""
        if self.word == "failed" and self._last and self._last.reason:
            return self._last.reason
        return self.state.detail

    def as_json(self) -> dict[str, Any]:
        return {
            "run": str(self.run.root),
            "job_id": self.submission.job_id,
            "scheduler": self.submission.scheduler,
            "state": self.word,
            "reason": self.why,
            "nodes": self.state.nodes,
            "restarts": self.state.restarts,
            "attempt": None if self.attempt is None else self.attempt.number,
            **asdict(self.status),
        }

    @property
    def _last(self) -> Attempt | None:
        """The last attempt, if this job made it: one that was cancelled while it waited made none."""
        if self.attempt is None or self.attempt.job_id != self.submission.job_id:
            return None
        return self.attempt

    @property
    def _heard_of_it(self) -> bool:
        heard, began = self.status.heard_unix_s, self.attempt.began_unix_s if self.attempt else None
        return heard is not None and began is not None and heard >= began


def newest_submission(run: RunDir) -> Submission | None:
    """The last line of submissions.jsonl; None = the run was never submitted. A truncated last line is skipped.

    Raises:
        Unreadable: the line, or the file, is not valid: the run's job is unknown.
        OSError: the run folder may not be looked into.
    """
    lines = [line for line in tail(run.submissions, TAIL_BYTES) if line.endswith(b"\n") and line.strip()]
    if not lines:
        return None
    row = parse_object(lines[-1]) or {}
    scheduler, job_id, argv = row.get("scheduler"), text(row.get("job_id")), row.get("argv")
    time_unix_s = number(row.get("time_unix_s"))
    sound = isinstance(argv, list) and all(isinstance(word, str) for word in argv) and time_unix_s is not None
    if not isinstance(scheduler, str) or scheduler not in SCHEDULERS or not JOB_ID.fullmatch(job_id) or not sound:
        raise Unreadable(f"the last line of {run.submissions.name} has no job id")
    return Submission(scheduler=scheduler, job_id=job_id, argv=tuple(argv or ()), time_unix_s=time_unix_s or 0.0)


def jobs_of(runs: Sequence[RunDir]) -> tuple[list[Job], list[str]]:
    """The newest job of each run that was submitted, and warnings. Each scheduler is asked once.

    A run that cannot be read is a job in state unreadable, with the reason.
    """
    newest: dict[RunDir, Submission] = {}
    damaged: dict[RunDir, str] = {}
    read: dict[RunDir, tuple[Attempt | None, RunStatus]] = {}
    for run in runs:
        with _noting(damaged, run):
            if (found := newest_submission(run)) is not None:
                newest[run] = found
    with ThreadPoolExecutor(1) as other:  # folders are read while Slurm answers
        asked = other.submit(_ask, list(newest.values()))
        for run in newest:
            with _noting(damaged, run):
                read[run] = (last_attempt(run), run_status(run))
        answers, warnings = asked.result()
    states = _with_processes(newest, answers)
    jobs = []
    for run in runs:
        if run in damaged:
            jobs.append(_unreadable(run, newest.get(run), damaged[run]))
        elif (submission := newest.get(run)) is not None:
            state = states[run]
            attempt, figures = read[run]
            if state.phase not in ("waiting", "running") and (attempt is None or attempt.kind is None):
                attempt, figures = last_attempt(run), run_status(run)  # it may have ended while its folder was read
            jobs.append(Job(run=run, submission=submission, state=state, attempt=attempt, status=figures))
    return jobs, warnings


@contextmanager
def _noting(damaged: dict[RunDir, str], run: RunDir) -> Iterator[None]:
    """Why a run cannot be read, instead of an end of the command that looks at many."""
    try:
        yield
    except Unreadable as error:
        damaged[run] = str(error)
    except OSError as error:
        damaged[run] = f"the run folder cannot be read: {error.strerror}"


def _unreadable(run: RunDir, known: Submission | None, reason: str) -> Job:
    submission = known or Submission(scheduler="local", job_id="", argv=(), time_unix_s=0.0)
    state = JobState(job_id=submission.job_id, phase="unknown")
    return Job(run=run, submission=submission, state=state, attempt=None, status=UNKNOWN, unreadable=reason)


def _ask(newest: Sequence[Submission]) -> tuple[dict[tuple[str, str], JobState], list[str]]:
    """States by scheduler and job id, and a warning for each scheduler that does not answer."""
    states: dict[tuple[str, str], JobState] = {}
    warnings = []
    for kind in sorted({s.scheduler for s in newest}):
        ids = [s.job_id for s in newest if s.scheduler == kind]
        try:
            answer: Mapping[str, JobState] = scheduler_of(kind).states(ids)
        except EnvironmentFault as fault:  # the folders still tell most
            warnings.append(f"{fault}; states are from the run folders only")
            answer = {}
        unasked = "the scheduler could not be queried"
        states |= {(kind, job): answer.get(job) or JobState(job_id=job, phase="unknown", detail=unasked) for job in ids}
    return states, warnings


def _with_processes(
    newest: Mapping[RunDir, Submission], states: dict[tuple[str, str], JobState]
) -> dict[RunDir, JobState]:
    """A local run is running while processes of it live: its process id may be another's, or its launcher be killed."""
    local = any(submission.scheduler == "local" for submission in newest.values())
    live = processes() if local else {}  # one look at /proc for all runs
    found = {}
    for run, submission in newest.items():
        state = states[submission.scheduler, submission.job_id]
        if submission.scheduler == "local":
            state = replace(state, phase="running" if run.root.resolve() in live else "unknown")
        found[run] = state
    return found


def runs_folder(given: Path | None, cluster: str | None) -> Path:
    """--runs, COLOSSEUM_RUNS, else the cluster's own, for which alone a cluster file is read."""
    if known := given or os.environ.get("COLOSSEUM_RUNS"):
        return Path(known).expanduser()
    from colosseum.launch.runs.submit import runs_root  # with the recipe code, which takes a while to load
    from colosseum.recipe.load import load_cluster

    return runs_root(None, load_cluster(cluster))


def runs_under(root: Path) -> list[RunDir]:
    """Run folders, oldest first: their names begin with the time. Also those that we may not look into."""
    if not root.is_dir():
        return []
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries if _is_run(entry))
    return [RunDir(root / name) for name in names]


def _is_run(entry: os.DirEntry[str]) -> bool:
    try:
        return stat.S_ISDIR(os.stat(os.path.join(entry.path, "bundle")).st_mode)  # noqa: PTH116, PTH118
    except PermissionError:
        return RUN_NAME.match(entry.name) is not None
    except OSError:
        return False


def pick_run(name: str, root: Path) -> RunDir:
    """A run by its folder, its name under ``root``, or a part of a name that only one has.

    Raises:
        RefusedInput: none or several.
    """
    for folder in (root / name, Path(name)):
        if (folder / "bundle").is_dir():
            return RunDir(folder)
    all_runs = runs_under(root)
    found = [run for run in all_runs if name and name in run.root.name]
    if len(found) == 1:
        return found[0]
    rule = "several runs have this in their name" if found else f"no such run: no run folder, no name under {root}"
    nearest = tuple(run.root.name for run in reversed((found or all_runs)[-3:]))
    raise RefusedInput([Fault(path="RUN", value=name, rule=rule, nearest=nearest, where="command line")])


def job_of(run: RunDir, *, must_answer: bool = False) -> Job:
    """The newest job of one run.

    Raises:
        RefusedInput: the run was never submitted.
        EnvironmentFault: its scheduler does not answer, and it ``must_answer``.
    """
    jobs, unasked = jobs_of([run])
    if not jobs:
        raise RefusedInput(f"{run.root.name} was never submitted")
    if jobs[0].unreadable and must_answer:
        raise RefusedInput(
            f"{run.root.name}: {jobs[0].unreadable}; nothing was started because it may still be running"
        )
    if unasked and must_answer:
        raise EnvironmentFault(unasked_start(unasked))
    return jobs[0]


def unasked_start(warnings: Sequence[str]) -> str:
    """Nothing is started while it is unknown whether a job runs: two jobs of one run would write to one folder."""
    return f"nothing was started because the run may still be running: {warnings[0].partition(';')[0]}"


def cancel(run: RunDir) -> Job:
    """Ends a run's job.

    Raises:
        RefusedInput: it has ended already.
    """
    from colosseum.bundle import read_bundle
    from colosseum.launch.schedulers.scripts import stop_margin_s

    job = job_of(run)
    if job.unreadable:
        raise RefusedInput(f"{run.root.name}: {job.unreadable}; nothing was cancelled")
    scheduler = scheduler_of(job.submission.scheduler)
    unknown = isinstance(scheduler, Queue) and job.word == "ended"  # it may not have answered
    if job.word not in LIVE and not unknown:
        raise RefusedInput(f"job {job.submission.job_id} of {run.root.name} has ended: {job.word}; nothing to cancel")
    if isinstance(scheduler, Queue):
        scheduler.cancel(job.submission.job_id)
    else:
        assert isinstance(scheduler, Foreground)
        bundle = read_bundle(run.bundle)
        scheduler.stop(run, stop_margin_s(bundle.recipe, bundle.plan))
    return job


def requeue(run: RunDir) -> Submission | None:
    """Restarts a run: a running one saves first and keeps its job id (None), another one gets a new job.

    Raises:
        RefusedInput: it is complete, or waits to start anyway.
        EnvironmentFault: its scheduler does not say whether it runs.
    """
    from colosseum.bundle import read_bundle
    from colosseum.launch.runs.submit import modes_of, start

    job, bundle = job_of(run, must_answer=True), read_bundle(run.bundle)
    scheduler = scheduler_of(bundle.recipe.cluster.scheduler)
    if run.is_complete():
        raise RefusedInput(f"{run.root.name} is complete; to train further use --from {run.root.name} train.steps=N")
    if job.word == "waiting":
        raise RefusedInput(
            f"job {job.submission.job_id} of {run.root.name} is already waiting to start: {job.state.detail}"
        )
    if job.word in LIVE:
        scheduler.save_and_restart(job.submission.job_id)
        return None
    with modes_of(run.root):
        run.forgive_attempts()
    return start(run, bundle.recipe, scheduler)
