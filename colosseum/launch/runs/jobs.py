"""Jobs of run folders: their state from scheduler, processes and folder together."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from colosseum import owner
from colosseum.bundle import SLURM_SCRIPT
from colosseum.errors import EnvironmentFault, Fault, RefusedInput
from colosseum.home import named_runs
from colosseum.launch.local.run_processes import processes
from colosseum.launch.schedulers.base import JobState, Queue, Submission
from colosseum.launch.schedulers.registry import SCHEDULERS, scheduler_of
from colosseum.monitor.watch import UNKNOWN, Attempt, RunStatus, last_attempt, run_status
from colosseum.reading import Unreadable, tail
from colosseum.records import JOB_ID, Owner, number, parse_object, text
from colosseum.rundir import RunDir

LIVE = ("waiting", "starting", "running")
RUN_NAME = re.compile(r"\d{8}-\d{6}-")
TAIL_BYTES = 1 << 20
"""Of submissions.jsonl: some thousand submissions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of a run: the one that lives, else the newest."""

    run: RunDir
    submission: Submission
    """Of a job that was started by hand, what its owner's record says."""
    state: JobState
    attempt: Attempt | None
    status: RunStatus
    also: tuple[Submission, ...] = ()
    """More jobs of the run that wait or run: each will end at once, as the run has an owner."""
    unreadable: str = ""
    """Why the newest job cannot be determined; then ``submission`` has no job."""

    @property
    def word(self) -> str:
        """One of LIVE, complete, stopped, failed, cancelled, ended (unknown how), unreadable, and unknown: whether
        it runs could not be found out.
        """
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
        if kind or phase == "failed":
            return "failed"
        return "ended" if self.state.asked else "unknown"

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

    def read_again(self) -> Job:
        """The same job with what its run folder says now; the scheduler is not asked."""
        return replace(self, attempt=last_attempt(self.run), status=run_status(self.run))

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
    if not isinstance(scheduler, str) or scheduler not in SCHEDULERS or not JOB_ID.match(job_id) or not sound:
        raise Unreadable(f"the last line of {run.submissions.name} has no job id")
    return Submission(scheduler=scheduler, job_id=job_id, argv=tuple(argv or ()), time_unix_s=time_unix_s or 0.0)


def jobs_of(runs: Sequence[RunDir]) -> tuple[list[Job], list[str]]:
    """The job of each run that was started, also by hand, and warnings. Each scheduler is asked for all at once.

    A run that cannot be read is a job in state unreadable, with the reason.
    """
    by_hand, silent = _by_hand(runs)
    known: dict[RunDir, list[Submission]] = {}
    owners: dict[RunDir, Owner | None] = {}
    damaged: dict[RunDir, str] = {}
    read: dict[RunDir, tuple[Attempt | None, RunStatus]] = {}
    for run in runs:
        with _noting(damaged, run):
            owners[run] = _owner(run)
            if found := _known(run, owners[run], by_hand.get(run, ())):
                known[run] = found
    with ThreadPoolExecutor(1) as other:  # folders are read while Slurm answers
        asked = other.submit(_ask, [submission for its in known.values() for submission in its], silent)
        for run in known:
            with _noting(damaged, run):
                read[run] = (last_attempt(run), run_status(run))
        answers, warnings = asked.result()
    states = _states(known, owners, answers)
    jobs = []
    for run in runs:
        if run in damaged:
            jobs.append(_unreadable(run, known.get(run, [None])[0], damaged[run]))
        elif run in known:
            jobs.append(_job(run, known[run], states[run], *read[run]))
    return jobs, warnings


def _owner(run: RunDir) -> Owner | None:
    """Raises Unreadable, OSError: the newest owner's record is not what we write, or may not be read."""
    number, holder = owner.newest(run.root)
    if number < 0:
        list((run.root / owner.FOLDER).iterdir())  # raises the reason
    if number and holder is None:
        raise Unreadable(f"the newest record in {owner.FOLDER}/ cannot be read")
    return holder


def _known(run: RunDir, holder: Owner | None, more: Sequence[Submission]) -> list[Submission]:
    """Every job that may be the run's, each once: the owner first, the newest submission, and more.

    Raises:
        Unreadable, OSError: as ``newest_submission``.
    """
    found: dict[tuple[str, str], Submission] = {}
    submitted = newest_submission(run)
    owned = None
    if holder is not None:
        job_id = holder.job_id
        owned = Submission(scheduler=holder.scheduler, job_id=job_id, argv=(), time_unix_s=holder.time_unix_s)
    if owned and submitted and (owned.scheduler, owned.job_id) == (submitted.scheduler, submitted.job_id):
        owned = submitted
    for one in (owned, submitted, *more):
        if one is not None:
            found.setdefault((one.scheduler, one.job_id), one)
    return list(found.values())


def _job(
    run: RunDir, known: Sequence[Submission], states: Sequence[JobState], attempt: Attempt | None, status: RunStatus
) -> Job:
    """Of several jobs the first that lives; else the one that completed the run, else the newest."""
    pairs = list(zip(known, states, strict=True))
    living = [(submission, state) for submission, state in pairs if state.phase in ("waiting", "running")]
    if not living and (attempt is None or attempt.kind is None):
        attempt, status = last_attempt(run), run_status(run)  # it may have ended while its folder was read
    done = attempt is not None and attempt.kind == "completed"
    ended = sorted(pairs, key=lambda pair: pair[0].time_unix_s, reverse=True)
    its = [pair for pair in ended if done and attempt is not None and pair[0].job_id == attempt.job_id]
    submission, state = (living or its or ended)[0]
    also = tuple(other for other, _ in living[1:])
    return Job(run=run, submission=submission, state=state, attempt=attempt, status=status, also=also)


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


def _ask(
    submissions: Sequence[Submission], silent: Mapping[str, EnvironmentFault]
) -> tuple[dict[tuple[str, str], JobState], list[str]]:
    """States by scheduler and job id, and a warning for each scheduler that does not answer.

    This machine is not asked: its processes tell. Nor are those that are known to be ``silent``, and why.
    """
    states: dict[tuple[str, str], JobState] = {}
    faults = dict(silent)
    for kind in sorted({s.scheduler for s in submissions} - {"local"}):
        ids = [s.job_id for s in submissions if s.scheduler == kind]
        answer: Mapping[str, JobState] = {}
        if kind not in faults:
            try:
                answer = scheduler_of(kind).states(ids)
            except EnvironmentFault as fault:  # the folders still tell most
                faults[kind] = fault
        unasked = "the scheduler could not be queried"
        for job in ids:
            states[kind, job] = answer.get(job) or JobState(job_id=job, phase="unknown", detail=unasked, asked=False)
    return states, [f"{fault}; states are from the run folders only" for fault in faults.values()]


def _states(
    known: Mapping[RunDir, Sequence[Submission]],
    owners: Mapping[RunDir, Owner | None],
    answers: Mapping[tuple[str, str], JobState],
) -> dict[RunDir, list[JobState]]:
    """Of each run's jobs, in their order."""
    local = {run: owners[run] for run, its in known.items() if any(s.scheduler == "local" for s in its)}
    live = processes(local) if local else {}  # one look at /proc for all runs
    found = {}
    for run, its in known.items():
        ids = [p.pid for p in live.get(run, ()) if not p.is_rank]
        ranks_alone = not ids and bool(live.get(run))  # their launcher was killed
        found[run] = [
            _of_process(s, owners[run], int(s.job_id) in ids or (ranks_alone and s is its[0]))
            if s.scheduler == "local"
            else _its_own(run, answers[s.scheduler, s.job_id])
            for s in its
        ]
    return found


def _of_process(submission: Submission, holder: Owner | None, runs: bool) -> JobState:
    """A local run is running while processes of it live: its process id may be another's now."""
    job_id = submission.job_id
    if runs:
        return JobState(job_id=job_id, phase="running")
    if holder is not None and holder.job_id == job_id and owner.lives(holder) is None:
        unseen = f"it was started on {holder.host}, whose processes cannot be seen from here"
        return JobState(job_id=job_id, phase="unknown", detail=unseen, asked=False)
    return JobState(job_id=job_id, phase="unknown")


def _its_own(run: RunDir, state: JobState) -> JobState:
    """A job of that id in another folder is not the run's: Slurm restarted its job numbers, or the record is wrong."""
    if not state.folder:
        return state
    folder, index = Path(state.folder), state.job_id.partition("_")[2]
    root, places = run.root.resolve(), [folder, *([folder / index] if index else [])]
    if any(place.name == root.name or place.resolve() == root for place in places):
        return state
    detail = f"job {state.job_id} is of another folder, {text(state.folder, 200)}"
    return JobState(job_id=state.job_id, phase="unknown", detail=detail)


def runs_folder(given: Path | None, cluster: str | None) -> Path:
    """--runs, COLOSSEUM_RUNS, else the cluster's own, for which alone a cluster file is read."""
    if known := named_runs(given):
        return known
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
    """The job of one run, also one that was submitted by hand and waits.

    Raises:
        RefusedInput: the run was never started.
        EnvironmentFault: its scheduler does not answer, and it ``must_answer``.
    """
    job = job_if_any(run, must_answer=must_answer)
    if job is None:
        raise RefusedInput(f"{run.root.name} was never submitted")
    return job


def job_if_any(run: RunDir, *, must_answer: bool = False) -> Job | None:
    """As ``job_of``; None = the run was never started."""
    jobs, unasked = jobs_of([run])
    if jobs and jobs[0].unreadable and must_answer:
        raise RefusedInput(
            f"{run.root.name}: {jobs[0].unreadable}; nothing was started because it may still be running"
        )
    if unasked and must_answer:
        raise EnvironmentFault(unasked_start(unasked))
    return jobs[0] if jobs else None


def _by_hand(runs: Sequence[RunDir]) -> tuple[dict[RunDir, list[Submission]], dict[str, EnvironmentFault]]:
    """Jobs of the runs' own scripts that wait or run, whoever submitted them; and why a scheduler does not say."""
    queued = {run.root: run for run in runs if os.path.isfile(run.bundle / SLURM_SCRIPT)}  # noqa: PTH113 - never raises
    if not queued:
        return {}, {}
    scheduler, now = scheduler_of("slurm"), time.time()
    assert isinstance(scheduler, Queue)
    try:
        found = scheduler.in_folders(queued)
    except EnvironmentFault as fault:
        return {}, {"slurm": fault}
    return {
        queued[folder]: [Submission(scheduler="slurm", job_id=job, argv=(), time_unix_s=now) for job in ids]
        for folder, ids in found.items()
    }, {}


def unasked_start(warnings: Sequence[str]) -> str:
    """Nothing is started while it is unknown whether a job runs: two jobs of one run would write to one folder."""
    return f"nothing was started because the run may still be running: {warnings[0].partition(';')[0]}"
