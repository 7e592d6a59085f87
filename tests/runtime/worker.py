"""``python worker.py JOBS.json``: one rank that trains many recipes one after another, each under a layout of its own.

Importing megatron-core takes longer than the steps, so one set of processes runs them all.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

warnings.filterwarnings("ignore")
faulthandler.enable()


def main(jobs_file: str) -> None:
    from colosseum.runtime import device

    device.compile_nothing_on_cpu()
    import torch.distributed as dist
    from megatron.core import parallel_state

    from colosseum.recipe.schema import Recipe
    from colosseum.rundir import RunDir
    from colosseum.runtime import job, parallel
    from colosseum.runtime.failures import judge
    from colosseum.runtime.stopping import StopSignal

    rank_info = parallel.RankInfo.from_env()
    for number, entry in enumerate(json.loads(Path(jobs_file).read_text())):
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
    main(sys.argv[1])
