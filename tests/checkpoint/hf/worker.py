"""``python worker.py JOBS.json``: one rank that loads checkpoints as training does; their logits, and greedy tokens."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")


def main(jobs_file: str) -> None:
    from colosseum.runtime import device

    device.compile_nothing_on_cpu()
    import numpy as np
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region as whole

    from colosseum.checkpoint.folders import read_metadata
    from colosseum.recipe.schema import Recipe
    from colosseum.rundir import RunDir
    from colosseum.runtime import job, loading, parallel

    def logits(chunk: Any, ids: list[int]) -> Any:
        tokens, at = torch.tensor([ids]), torch.arange(len(ids))[None]
        return whole(chunk(input_ids=tokens, position_ids=at, attention_mask=None))[0]

    rank_info = parallel.RankInfo.from_env()
    store = f"file://{Path(jobs_file).absolute()}.store"  # no port that another test could take
    dist.init_process_group("gloo", init_method=store, rank=rank_info.rank, world_size=rank_info.ranks)
    for number, entry in enumerate(json.loads(Path(jobs_file).read_text())):
        recipe = Recipe.from_data(entry["recipe"])
        if number == 0:
            parallel.start(recipe, rank_info, 60.0)
        else:
            parallel.form_groups(recipe)
            parallel.seed(recipe)
        training = job._build(RunDir(Path(entry["out"]).parent), recipe, 8)
        folder = Path(str(recipe.checkpoint.source))
        loading.load(training, folder, read_metadata(folder), ("weights",))
        (chunk,) = training.model
        ids = list(entry["tokens"])
        with torch.no_grad():
            first = logits(chunk.eval(), ids)[:, : recipe.model.vocab_size]
            for _ in range(entry["new"]):
                ids.append(int(logits(chunk, ids)[-1].argmax()))
        if rank_info.rank == 0:
            np.savez(entry["out"], logits=first[entry["shown"]].numpy(), generated=ids[-entry["new"] :])
        dist.barrier()
        parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
