"""Runs recipes grouped by their number of ranks: one set of worker processes a group."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, latest_rows
from colosseum.runtime.failures import Verdict

WORKER = Path(__file__).with_name("worker.py")
TIMEOUT_S = 600


def train_all(runs: Mapping[str, Recipe], folder: Path) -> dict[str, dict[int, float]]:
    """Trains each recipe in ``folder/NAME``; training losses by name and step."""
    train_in_order(list(runs.items()), folder)
    return {name: losses(folder / name) for name in runs}


def train_in_order(runs: Sequence[tuple[str, Recipe]], folder: Path) -> None:
    """The same, those of one rank first; a name that comes twice is a run that is started again."""
    by_ranks: dict[int, list[tuple[str, Recipe]]] = {}
    for name, recipe in runs:
        by_ranks.setdefault(recipe.resources.gpus, []).append((name, recipe))
    for ranks, some in sorted(by_ranks.items()):
        _world(ranks, some, folder)


def fail_all(runs: Mapping[str, Recipe], folder: Path) -> dict[str, Verdict | None]:
    """Trains recipes of one rank that are expected to fail, in one process; how each ended, None = to its last step."""
    _world(1, list(runs.items()), folder, may_fail=True)
    ends = {name: folder / name / "failed.json" for name in runs}
    return {name: Verdict(**json.loads(path.read_text())) if path.exists() else None for name, path in ends.items()}


def losses(run: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in latest_rows(RunDir(run).metrics, "train")}


def _world(ranks: int, runs: Sequence[tuple[str, Recipe]], folder: Path, *, may_fail: bool = False) -> None:
    jobs = folder / f"jobs-{ranks}-{runs[0][0].replace('/', '-')}.json"
    entries = [{"run": str(folder / name), "recipe": recipe.as_data(), "may_fail": may_fail} for name, recipe in runs]
    jobs.write_text(json.dumps(entries))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    shared |= {"LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in range(ranks):
        log = (folder / f"{jobs.stem}-rank-{rank}.log").open("wb")
        env = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        processes.append(
            subprocess.Popen([sys.executable, str(WORKER), str(jobs)], env=env, stdout=log, stderr=subprocess.STDOUT)
        )
        log.close()
    try:
        codes = [process.wait(timeout=TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    failed = [rank for rank, code in enumerate(codes) if code]
    tails = (f"rank {r}: {(folder / f'{jobs.stem}-rank-{r}.log').read_text()[-1500:]}" for r in failed)
    assert not any(codes), f"exit codes {codes}\n" + "\n".join(tails)
