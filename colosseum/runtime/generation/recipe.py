"""The recipe under which a checkpoint's model is built to generate: its own model, none of its training."""

from __future__ import annotations

from typing import Any

from colosseum.checkpoint.hf.origin import Origin
from colosseum.checkpoint.metadata import CheckpointMetadata
from colosseum.recipe.schema import Recipe

_ANY_MACHINE: dict[str, Any] = {
    "hardware": {
        "name": "any",
        "kind": "gpu",
        "peak_flops": {"bf16": 1.0, "fp32": 1.0},
        "memory_bytes": 1,
        "memory_bytes_per_s": 1.0,
    },
    "cluster": {"name": "any", "scheduler": "local"},
}
"""A recipe must say where it runs; nothing here depends on it."""


def generation_recipe(origin: Origin, metadata: CheckpointMetadata, tp: int, pp: int) -> Recipe:
    """Without sequence parallelism (a step has one token), FP8, recomputation, overlap and fused training kernels."""
    data = _ANY_MACHINE if origin.recipe is None else origin.recipe.as_data()
    layout: dict[str, Any] = {"tp": tp, "pp": pp, "vpp": 1, "cp": 1, "sequence_parallel": False}
    if origin.recipe is not None and origin.recipe.parallelism.pp == pp > 1:
        layout = {**data["parallelism"], **layout, "microbatch_group_size_per_vp_stage": None}
    return Recipe.from_data(
        {
            "name": "generation",
            "task": data.get("task", {"kind": "cpt"}),
            "model": origin.model.model_dump(mode="json"),
            "batch": {"gbs": 1, "mbs": 1, "seq_length": metadata.model.seq_length},
            "parallelism": layout,
            "precision": {"dtype": metadata.dtype},
            "train": {"steps": 1},
            "overlap": {"tp_comm": False, "p2p": False, "batch_p2p": True, "grad_reduce": False, "param_gather": False},
            "fusion": {"gradient_accumulation": False},
            "resources": {"gpus": tp * pp},
            "hardware": data["hardware"],
            "cluster": data["cluster"],
        }
    )
