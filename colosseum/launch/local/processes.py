"""This machine as a place to run: what it has, starting a run folder here, and following it to its end."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from colosseum import owner
from colosseum.errors import INSTALL_TRAIN, EnvironmentFault, RefusedInput
from colosseum.launch.local import run_processes
from colosseum.launch.schedulers.base import JobState, Say, Show, Submission
from colosseum.reading import MAX_LINE, Unreadable, open_regular
from colosseum.records import MetricsRow
from colosseum.rundir import RunDir

if TYPE_CHECKING:
    from colosseum.recipe.schema import Recipe

MAX_CPU_RANKS = 8
POLL_S = 0.2
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def gpu_count() -> int:
    """GPUs of this machine that a process started now may use; asks the driver, needs no torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([d for d in visible.split(",") if d.strip() and d.strip() != "-1"])
    if shutil.which("nvidia-smi") is None:
        return 0
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def cannot_run(recipe: Recipe) -> str | None:
    """Why this machine cannot run a recipe: what it needs and what is here; None = it can."""
    needed = recipe.resources.gpus
    if recipe.hardware.kind == "cpu":
        if needed <= MAX_CPU_RANKS:
            return None
        return f"{recipe.name} needs {needed:,} CPU ranks; at most {MAX_CPU_RANKS} run on one machine"
    found = gpu_count()
    if needed <= found:
        return None
    has = "no GPU" if found == 0 else f"{found} GPU" + "s" * (found > 1)
    return f"{recipe.name} needs {needed:,} x {recipe.hardware.name} and this machine has {has}"


def require_packages() -> None:
    """Raises EnvironmentFault: the packages that training needs are not installed."""
    absent = [name for name in ("torch", "megatron") if importlib.util.find_spec(name) is None]
    if absent:
        raise EnvironmentFault(
            f"training needs {' and '.join(absent)}; not installed in {sys.executable}; {INSTALL_TRAIN}"
        )


class LocalScheduler:
    """The ``Scheduler`` of this machine: no queue, a job is a process group, its id the leader's process id."""

    def __init__(self) -> None:
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._offsets: dict[str, int] = {}
        """Length of metrics.jsonl when a job was started."""

    def check(self, run: RunDir, recipe: Recipe) -> str:
        """See ``Scheduler.check``.

        Raises:
            RefusedInput: the machine is too small, or the run is complete or running.
            EnvironmentFault: torch is missing.
        """
        if sentence := cannot_run(recipe):
            raise RefusedInput(sentence)
        require_packages()
        if run.is_complete():
            raise RefusedInput(
                f"{run.root.name} is complete; to train further use --from {run.root.name} train.steps=N"
            )
        if whose := owner.held(run.root):
            raise RefusedInput(f"{whose}; nothing was started or changed")
        return f"starts at once on {recipe.resources.gpus} ranks of this machine"

    def submit(self, run: RunDir, *, after: Sequence[str] = (), script: str | None = None) -> Submission:
        """Starts the run's ``launch.sh``, or the text of another script; what it says goes to logs/."""
        running = [job for job, state in self.states(after).items() if state.phase == "running"]
        if running:
            raise RefusedInput(f"this machine has no queue: wait until job {', '.join(running)} has ended")
        argv = ["bash", "bundle/launch.sh"] if script is None else ["bash", "-c", script]
        # `python` in the script is the one that runs us.
        env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        env["COLOSSEUM_RUN"] = str(run.root.resolve())  # by which the launcher is found, whatever its process id
        run.logs.mkdir(parents=True, exist_ok=True)
        offset = run.metrics.stat().st_size if run.metrics.is_file() else 0
        log = run.logs / f"job-starting-{os.getpid()}.out"
        with log.open("ab") as out:
            child = subprocess.Popen(
                argv, cwd=run.root, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        log.rename(run.logs / f"job-{child.pid}.out")
        self._children[str(child.pid)], self._offsets[str(child.pid)] = child, offset
        return Submission(scheduler="local", job_id=str(child.pid), argv=tuple(argv[:2]), time_unix_s=time.time())

    def states(self, job_ids: Sequence[str]) -> Mapping[str, JobState]:
        """Running or not; how an ended job ended stands in its run folder."""
        return {j: JobState(job_id=j, phase="running" if self._is_running(j) else "unknown") for j in job_ids}

    def stop(self, run: RunDir, margin_s: float, say: Say) -> bool:
        """See ``Foreground.stop``."""
        return run_processes.stop(run, margin_s, say)

    def follow(self, run: RunDir, job_id: str, show: Show, say: Say) -> bool:
        """See ``Foreground.follow``."""
        child, seen = self._children[job_id], self._offsets[job_id]
        with _passing_on(lambda: [child], say) as asked:
            while True:
                ended = child.poll() is not None
                rows, seen = _new_rows(run, seen)
                for row in rows:
                    show(row)
                if ended:
                    return asked()
                time.sleep(POLL_S)

    def work_through(self, starts: Sequence[Callable[[], str]], at_once: int, say: Say) -> bool:
        """See ``Foreground.work_through``."""
        waiting, live = deque(starts), list[subprocess.Popen[bytes]]()
        with _passing_on(lambda: live, say) as asked:
            while live or (waiting and not asked()):
                live[:] = [child for child in live if child.poll() is None]
                while waiting and len(live) < at_once and not asked():
                    child = self._children[waiting.popleft()()]
                    if asked():  # while it was being started
                        child.send_signal(signal.SIGUSR1)
                    live.append(child)
                time.sleep(POLL_S)
            return asked()

    def _is_running(self, job_id: str) -> bool:
        child = self._children.get(job_id)  # of others, a number says nothing: their runs are asked
        return child is not None and child.poll() is None


@contextmanager
def _passing_on(children: Callable[[], Sequence[subprocess.Popen[bytes]]], say: Say) -> Iterator[Callable[[], bool]]:
    """While the block lasts, signals that would end us make the runs save and leave; a second one ends them."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            say("stop requested: the ranks save and exit (interrupt again = kill them now without saving)")
        for child in children():
            if child.poll() is None:
                child.send_signal(signal.SIGUSR1)

    before = {number: signal.signal(number, handle) for number in _STOPPING}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _new_rows(run: RunDir, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Rows of metrics.jsonl from a byte offset on, and the offset after them; an unfinished line is left."""
    try:
        with open_regular(run.metrics) as file:
            file.seek(offset)
            data = file.read(MAX_LINE)
    except (FileNotFoundError, Unreadable):
        return [], offset
    whole, newline, rest = data.rpartition(b"\n")
    if len(rest) == MAX_LINE:  # no line of ours is that long
        return [], offset + len(data)
    parsed = map(MetricsRow.from_line, whole.splitlines())
    return [row.as_row() for row in parsed if row is not None], offset + len(whole) + len(newline)
