"""``python worker.py``: trains recipes in ranks that are forked from one process, which has imported everything.

Importing megatron-core takes longer than the steps. A line of stdin is {ranks, runs: FILE, logs: [of each rank], env};
the answer is a line with the ranks' exit codes. Each recipe has ranks of its own, one recipe after another: a process
that stays would keep the threads of every layout's process groups, which wake a hundred times a second.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import socket
import sys
import traceback
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
faulthandler.enable()

from colosseum.runtime import device  # noqa: E402

device.compile_nothing_on_cpu()

import torch._dynamo  # noqa: E402  (imported by the first optimizer)
import torch.distributed as dist  # noqa: E402
import torch.utils.tensorboard  # noqa: E402, F401  (by the first row)
import xxhash  # noqa: E402, F401  (by the first save)

from colosseum.recipe.schema import Recipe  # noqa: E402
from colosseum.rundir import RunDir  # noqa: E402
from colosseum.runtime import job, parallel, steps  # noqa: E402
from colosseum.runtime.failures import judge  # noqa: E402
from colosseum.runtime.stopping import StopSignal  # noqa: E402


def main() -> None:
    gc.freeze()  # a collection would write to, and so copy, pages that the ranks share
    for line in sys.stdin:
        world = json.loads(line)
        codes = [0] * world["ranks"]
        for entry in json.loads(Path(world["runs"]).read_text()):
            codes = _forked(world, entry)
            if any(codes):
                break
        sys.stdout.write(f"{json.dumps(codes)}\n")
        sys.stdout.flush()


def _forked(world: dict[str, Any], entry: dict[str, Any]) -> list[int]:
    """Exit codes of a recipe's ranks."""
    count = str(world["ranks"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    env = {**world["env"], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    env |= {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    pids = []
    for rank, log in enumerate(world["logs"]):
        if (pid := os.fork()) == 0:
            _rank({**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}, log, entry)
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def _rank(env: dict[str, str], log: str, entry: dict[str, Any]) -> None:
    """Does not return."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.clear()
    os.environ.update(env)
    code = 1
    try:
        _train(entry)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _train(entry: dict[str, Any]) -> None:
    rank_info = parallel.RankInfo.from_env()
    recipe = Recipe.from_data(entry["recipe"])
    parallel.start(recipe, rank_info, 300.0)
    run = RunDir(Path(entry["run"]))
    attempt = run.attempt(0)
    attempt.root.mkdir(parents=True, exist_ok=True)
    steps.forward_backward = poisoned(steps.forward_backward, entry["poison"], recipe.batch.gbs)
    try:
        job.train(job.Job(run=run, attempt=attempt, number=0, rank_info=rank_info), recipe, StopSignal())
    except Exception as error:
        if not entry["may_fail"]:
            raise
        (run.root / "failed.json").write_text(json.dumps(asdict(judge(error))))
    dist.barrier()  # a rank that leaves ends the others


def poisoned(true_step: Any, numbers: list[int], gbs: int) -> Any:
    """A step that reads the labels of these steps (from 1) as one and the same token."""

    def step(recipe: Any, task: Any, model: Any, samples: Any, first: int, **more: Any) -> Any:
        number = first // gbs + 1
        bad = Poisoned(samples) if number in numbers and not more["forward_only"] else samples
        return true_step(recipe, task, model, bad, first, **more)

    return step


class Poisoned:
    """Samples whose labels are all token 3."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def micro_batches(self, *args: Any) -> Any:
        batches = self.samples.micro_batches(*args)

        def make(number: int) -> Any:
            batch = batches.make(number)
            return {**batch, "labels": batch["labels"] * 0 + 3}

        return replace(batches, make=make)


if __name__ == "__main__":
    main()
