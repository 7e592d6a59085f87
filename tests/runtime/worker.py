"""``python worker.py``: trains recipes in ranks that are forked from one process, which has imported everything.

Importing megatron-core takes longer than the steps. A line of stdin is a world: {env: [of each rank], log: [of each
rank], jobs: FILE}; the answer is a line with the ranks' exit codes. The ranks of a world train its recipes one after
another, each under a layout of its own.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import traceback
import warnings
from dataclasses import asdict
from pathlib import Path

warnings.filterwarnings("ignore")
faulthandler.enable()

from colosseum.runtime import device  # noqa: E402

device.compile_nothing_on_cpu()

import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402

from colosseum.recipe.schema import Recipe  # noqa: E402
from colosseum.rundir import RunDir  # noqa: E402
from colosseum.runtime import job, parallel  # noqa: E402
from colosseum.runtime.failures import judge  # noqa: E402
from colosseum.runtime.stopping import StopSignal  # noqa: E402


def main() -> None:
    gc.freeze()  # a collection would write to, and so copy, pages that the ranks share
    for line in sys.stdin:
        world = json.loads(line)
        ranks = []
        for env, log in zip(world["env"], world["log"], strict=True):
            if (pid := os.fork()) == 0:
                _rank(env, log, world["jobs"])
            ranks.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
        sys.stdout.write(f"{json.dumps(codes)}\n")
        sys.stdout.flush()


def _rank(env: dict[str, str], log: str, jobs: str) -> None:
    """Does not return."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.clear()
    os.environ.update(env)
    code = 1
    try:
        _train(jobs)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _train(jobs: str) -> None:
    rank_info = parallel.RankInfo.from_env()
    for number, entry in enumerate(json.loads(Path(jobs).read_text())):
        recipe = Recipe.from_data(entry["recipe"])
        if number == 0:
            parallel.start(recipe, rank_info, 300.0)
        else:
            parallel.form_groups(recipe)
            parallel.seed(recipe)
        run = RunDir(Path(entry["run"]))
        attempt = run.attempt(0)
        attempt.root.mkdir(parents=True, exist_ok=True)
        try:
            job.train(job.Job(run=run, attempt=attempt, number=0, rank_info=rank_info), recipe, StopSignal())
        except Exception as error:
            if not entry["may_fail"]:
                raise
            (run.root / "failed.json").write_text(json.dumps(asdict(judge(error))))
        dist.barrier()
        parallel_state.destroy_model_parallel()
        gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
