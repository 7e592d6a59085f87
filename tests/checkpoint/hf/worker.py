"""``python worker.py JOBS.json``: one rank that loads checkpoints as training does; their logits, and greedy tokens."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")


def exchange(chunk: Any, arguments: dict[str, Any], written: str, nemo: str, exported: str) -> None:
    """What Megatron-LM's and NeMo 1's saves call: megatron-core's save of their states; and its load of our export."""
    import argparse

    import torch
    from megatron.core import dist_checkpointing

    from colosseum.runtime.model import unwrapped

    model = unwrapped(chunk)
    common = {"args": argparse.Namespace(**arguments), "checkpoint_version": 3.0, "iteration": 7}
    dist_checkpointing.save({**common, "model": model.sharded_state_dict()}, written)
    dist_checkpointing.save({"state_dict": model.sharded_state_dict(prefix="model.")}, nemo)
    loaded = dist_checkpointing.load({"model": model.sharded_state_dict()}, exported)
    assert loaded["args"].add_qkv_bias is True and loaded["checkpoint_version"] == 3.0
    for name, tensor in model.state_dict().items():
        assert tensor is None or "_extra_state" in name or torch.equal(loaded["model"][name], tensor), name


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
        if "exchange" in entry:
            exchange(chunk, **entry["exchange"])
        if rank_info.rank == 0:
            np.savez(entry["out"], logits=first[entry["shown"]].numpy(), generated=ids[-entry["new"] :])
        dist.barrier()
        parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
