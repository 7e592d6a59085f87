"""Run folders whose job script starts ``stand_in.py`` instead of training."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from colosseum.bundle import SLURM_SCRIPT, write_bundle
from colosseum.engines import start as start_py
from colosseum.launch.bundles.compile import compile_bundle
from colosseum.launch.runs.jobs import Job, job_of
from colosseum.launch.runs.submit import new_run, start
from colosseum.launch.schedulers.base import ENDED
from colosseum.launch.slurm import job_script
from colosseum.launch.slurm.commands import SlurmScheduler
from colosseum.planning.resolve import apply_layout, resolve
from colosseum.recipe.load import load
from colosseum.rundir import RunDir, latest_rows
from tests.slurm.foreign_engine import COMMAND
from tests.traps import set_traps

STAND_IN = Path(__file__).with_name("stand_in.py")


def stand_in_run(
    runs: Path, name: str, *words: str, fault: str = "", stop_after_step: int = 0, foreign: bool = False
) -> RunDir:
    """A run of two nodes with a rank each, not yet submitted; ``foreign``: its ranks are the real start.py."""
    sizes = ("resources.gpus=2", "resources.gpus_per_node=1", "batch.mbs=8", f"name={name}")
    recipe = load("debug/cpt-4k-bf16", [*sizes, *words], cluster="dev-slurm").recipe
    plan = resolve(recipe)
    compiled = compile_bundle(apply_layout(recipe, plan.layout), plan)
    argv = [sys.executable, *(("-I", "bundle/engine/start.py") if foreign else (str(STAND_IN),))]
    script = job_script.render(compiled.recipe, plan, argv, stop_after_step=stop_after_step)
    run = new_run(runs, name)
    start = Path(start_py.__file__).read_bytes()
    more = {"engine/command.json": json.dumps(COMMAND).encode(), "engine/start.py": start} if foreign else {}
    write_bundle(run.bundle, {**compiled.files, **more, SLURM_SCRIPT: script.encode()}, compiled.manifest)
    set_traps(run.root)
    if fault:
        (run.root / "fault").write_text(fault)
    return run


def submit(run: RunDir) -> str:
    """The job id."""
    return start(run, load("debug/cpt-4k-bf16", cluster="dev-slurm").recipe, SlurmScheduler()).job_id


def until(what: Callable[[], Any], timeout_s: float = 300) -> Any:
    """Polls until ``what()`` is true; its value."""
    end = time.monotonic() + timeout_s
    while not (value := what()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout_s} s")
        time.sleep(0.2)
    return value


def until_step(run: RunDir, step: int, attempt: int = 0) -> None:
    """Waits for a step of an attempt."""
    until(lambda: any(r["step"] >= step and r["attempt"] >= attempt for r in latest_rows(run.metrics, "train")))


def until_begun(run: RunDir, attempt: int, timeout_s: float = 300) -> None:
    """Waits for an attempt's env.json: its folder is made a moment earlier and says nothing yet."""
    until(lambda: run.attempt(attempt).env.exists(), timeout_s)


def until_ended(run: RunDir, timeout_s: float = 300) -> Job:
    """Waits for the end of the run's newest job: ended for Slurm, not waiting to start again."""

    def ended() -> Job | None:
        job = job_of(run)
        return job if job.state.phase in ENDED else None

    try:
        job: Job = until(ended, timeout_s)
    except TimeoutError as error:
        logs = "\n".join(p.read_text() for p in run.logs.iterdir())
        raise TimeoutError(f"{run.root.name} is {job_of(run).state}\n{logs}") from error
    return job


def log(run: RunDir) -> str:
    """What the job scripts said."""
    return "".join(p.read_text() for p in sorted(run.logs.iterdir()))


def losses(run: RunDir) -> list[float]:
    """By step, of the attempt that counts."""
    return [row["loss"] for row in latest_rows(run.metrics, "train")]


def batch_shell(run: RunDir) -> int:
    """Process id of the job's script."""
    return _process(run, lambda words, _: words[0].endswith("bash") and words[-2].endswith("/slurm_script"))


def rank_process(run: RunDir, rank: int) -> int:
    """Process id of a rank."""
    return _process(run, lambda words, env: "python" in words[0] and f"RANK={rank}" in env)


def is_alive(run: RunDir) -> bool:
    """Whether any process works in the run folder."""
    return any(_works_in(folder, run) for folder in Path("/proc").glob("[0-9]*"))


def _works_in(process: Path, run: RunDir) -> bool:
    with suppress(OSError):  # gone, or another user's
        return (process / "cwd").readlink() == run.root.resolve()
    return False


@contextmanager
def held(run: RunDir, ranks: int = 2) -> Iterator[None]:
    """The ranks stand still meanwhile: a command takes seconds on a busy machine, the rest of a run no more."""
    processes = [rank_process(run, rank) for rank in range(ranks)]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):  # Slurm may have ended it
                os.kill(process, signal.SIGCONT)


def _process(run: RunDir, is_it: Callable[[list[str], list[str]], bool]) -> int:
    """The process that works in the run folder and is meant; other dev-slurms may have a job of the same id.

    A fork of it looks the same: the one whose parent is none of those found.
    """
    found: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if not _works_in(folder, run):
            continue
        try:
            words, env = ((folder / name).read_text(errors="replace").split("\0") for name in ("cmdline", "environ"))
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # gone, or another user's
            continue
        if len(words) > 1 and is_it(words, env):
            found[int(folder.name)] = parent
    for process, parent in found.items():
        if parent not in found:
            return process
    raise LookupError("no such process")
