"""Trains recipes, those of fewer ranks first, in ranks that worker.py forks for each."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, latest_rows
from colosseum.runtime.failures import Verdict

WORKER = Path(__file__).with_name("worker.py")
TIMEOUT_S = 600


def train_all(runs: Mapping[str, Recipe], folder: Path) -> dict[str, dict[int, float]]:
    """Trains each recipe in ``folder/NAME``; training losses by name and step."""
    train_in_order(list(runs.items()), folder)
    return {name: losses(folder / name) for name in runs}


def train_in_order(
    runs: Sequence[tuple[str, Recipe]], folder: Path, poison: Mapping[str, Sequence[int]] | None = None
) -> None:
    """The same, those of one rank first; a name that comes twice is a run that is started again.

    Args:
        poison: steps (from 1) of a run whose labels are wrong.
    """
    by_ranks: dict[int, list[tuple[str, Recipe]]] = {}
    for name, recipe in runs:
        by_ranks.setdefault(recipe.resources.gpus, []).append((name, recipe))
    for ranks, some in sorted(by_ranks.items()):
        _world(ranks, some, folder, poison=poison or {})


def fail_all(runs: Mapping[str, Recipe], folder: Path) -> dict[str, Verdict | None]:
    """Trains recipes of one rank that are expected to fail, in one process; how each ended, None = to its last step."""
    _world(1, list(runs.items()), folder, may_fail=True)
    ends = {name: folder / name / "failed.json" for name in runs}
    return {name: Verdict(**json.loads(path.read_text())) if path.exists() else None for name, path in ends.items()}


def losses(run: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in latest_rows(RunDir(run).metrics, "train")}


def _world(
    ranks: int,
    runs: Sequence[tuple[str, Recipe]],
    folder: Path,
    *,
    may_fail: bool = False,
    poison: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> None:
    jobs = folder / f"jobs-{ranks}-{runs[0][0].replace('/', '-')}.json"
    entries = [
        {
            "run": str(folder / name),
            "recipe": recipe.as_data(),
            "may_fail": may_fail,
            "poison": list(poison.get(name, ())),
        }
        for name, recipe in runs
    ]
    jobs.write_text(json.dumps(entries))
    logs = [folder / f"{jobs.stem}-rank-{rank}.log" for rank in range(ranks)]
    world = {"ranks": ranks, "runs": str(jobs), "logs": [str(log) for log in logs], "env": dict(os.environ)}
    codes = _answer(json.dumps(world))
    tails = (f"rank {r}: {logs[r].read_text()[-1500:]}" for r in range(ranks) if codes[r])
    assert not any(codes), f"exit codes {codes}\n" + "\n".join(tails)


@functools.cache
def _worker() -> subprocess.Popen[str]:
    """One for all tests of this process."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(WORKER)]
    worker = subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    atexit.register(_end, worker)
    return worker


def _end(worker: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.communicate()


def _answer(world: str) -> list[int]:
    worker = _worker()
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(f"{world}\n")
    worker.stdin.flush()
    if not select.select([worker.stdout], [], [], TIMEOUT_S)[0]:
        _worker.cache_clear()
        _end(worker)
        raise TimeoutError(f"no answer within {TIMEOUT_S} s")
    return list(json.loads(worker.stdout.readline()))
