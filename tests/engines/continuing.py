"""Saves a checkpoint as Megatron-LM does with megatron-core, continues from it, and prints what runs would load.

    python -m tests.engines.continuing FOLDER

Run by test_continue.py, once for all of its tests: each FOLDER/NAME is a run folder with bundle/engine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from colosseum.engines import continue_from

STEP, GBS, STEPS, WARMUP = 20, 4, 100, 10
GROUP = {"max_lr": 1e-3, "min_lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "wd_mult": 1.0, "lr_mult": 1.0}
KEY = "optimizer.distributed.dp_group_idx_0.optimizer"


def schedule(max_lr: float) -> Any:
    """As Megatron-LM makes one: it counts samples."""
    return OptimizerParamScheduler(
        SimpleNamespace(param_groups=[{"wd_mult": 1.0}]),
        init_lr=0.0,
        max_lr=max_lr,
        min_lr=1e-4,
        lr_warmup_steps=WARMUP * GBS,
        lr_decay_steps=STEPS * GBS,
        lr_decay_style="cosine",
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=STEPS * GBS,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,
    )


def state(group: dict[str, Any], tensor: torch.Tensor) -> dict[str, Any]:
    """Tensors, and the groups as a distributed optimizer keeps them."""
    return {
        "model": {"w": ShardedTensor.from_rank_offsets("w", tensor)},
        "optimizer": {"optimizer": ShardedObject(KEY, {"param_groups": [group]}, (1,), (0,))},
    }


def main(folder: Path) -> None:
    torch.cuda.synchronize = lambda *_: None  # what saves a checkpoint asks for a GPU
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    parent = schedule(1e-3)
    parent.step(STEP * GBS)
    saved = folder / "parent/checkpoints" / f"iter_{STEP:07d}"
    saved.mkdir(parents=True)
    (saved.parent / "latest_checkpointed_iteration.txt").write_text(str(STEP))
    common = {
        "args": argparse.Namespace(consumed_train_samples=STEP * GBS, consumed_valid_samples=8, num_layers=2),
        "iteration": STEP,
        "checkpoint_version": 3.0,
        "opt_param_scheduler": parent.state_dict(),
    }
    dist_checkpointing.save({**common, **state({**GROUP, "step": STEP}, torch.arange(4.0))}, str(saved))
    runs = sorted(path.parents[2] for path in folder.glob("*/bundle/engine/command.json"))
    json.dump({run.name: continued(run) for run in runs}, sys.stdout)


def continued(run: Path) -> dict[str, Any]:
    """What a first attempt of a run loads, or why it is refused."""
    os.chdir(run)
    continue_from.HERE = run / "bundle/engine"
    try:
        continue_from.main()
    except SystemExit as refused:
        return {"refused": str(refused)}
    folder = run / "continued"
    step = int((folder / "latest_checkpointed_iteration.txt").read_text())
    loaded = dist_checkpointing.load(state({}, torch.zeros(4)), str(folder / f"iter_{step:07d}"))
    own, fresh = schedule(1e-3), schedule(1e-3)
    own.load_state_dict(loaded["opt_param_scheduler"])
    return {
        "weights": loaded["model"]["w"].tolist(),
        "adam_step": loaded["optimizer"]["optimizer"]["param_groups"][0]["step"],
        "iteration": loaded["iteration"],
        "samples": loaded["args"].consumed_train_samples,
        "rates": [rates(own), rates(fresh)],
    }


def rates(of: Any) -> list[float]:
    """Learning rates of the next steps."""
    found = []
    for _ in range(15):
        of.step(GBS)
        found.append(of.get_lr({}))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
