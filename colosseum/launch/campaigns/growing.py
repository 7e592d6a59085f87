"""Depth growth in a gate: the next stage has more layers than the checkpoint that it starts from."""

from __future__ import annotations

import shutil
from pathlib import Path

from colosseum.checkpoint.expand import expand, origin_of
from colosseum.checkpoint.folders import is_committed, read_metadata
from colosseum.checkpoint.growth import Growth, growth
from colosseum.checkpoint.metadata import CheckpointMetadata
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, checkpoint_folder, saved_steps


def plan_of(recipe: Recipe, metadata: CheckpointMetadata) -> Growth | None:
    """How the checkpoint becomes one of the recipe's depth, computing what it did; None if it is deep enough.

    Adam's moments are carried where the recipe loads them, else left out.
    """
    before, after = metadata.model.num_layers, recipe.model.num_layers
    if before >= after:
        return None
    return growth(before, after, "evenly", "identity", "carry" if "optimizer" in recipe.checkpoint.load else "drop")


def as_grown(metadata: CheckpointMetadata, plan: Growth) -> CheckpointMetadata:
    """What the checkpoint will say of its model once it has grown."""
    return metadata.model_copy(
        update={"model": metadata.model.model_copy(update={"num_layers": len(plan.order)})},
    )


def sentence(metadata: CheckpointMetadata, plan: Growth) -> str:
    new = ", ".join(str(layer + 1) for layer in plan.new_layers)
    return (
        f"expanded from {metadata.model.num_layers} to {len(plan.order)} layers (new: {new}; init {plan.init}, "
        f"optimizer {plan.moments})"
    )


def grow_into(run: RunDir, recipe: Recipe, source: Path) -> None:
    """Writes the grown checkpoint into ``run.grown`` unless an earlier call has; an interrupted one is taken up.

    Raises:
        RefusedInput: the source is damaged.
        EnvironmentFault: there is not enough space on the disk.
    """
    metadata = read_metadata(source)
    plan = plan_of(recipe, metadata)
    if plan is None:
        shutil.rmtree(run.grown, ignore_errors=True)  # of an earlier checkpoint that was less deep
        return
    origin, checkpoints = origin_of(source, metadata, plan), run.grown / "checkpoints"
    for step in saved_steps(checkpoints):
        folder = checkpoint_folder(checkpoints, step)
        if not is_committed(folder):
            continue
        if read_metadata(folder).origin == origin:
            return
        shutil.rmtree(run.grown)  # of another checkpoint: the stage before was run again
        break
    expand(source, run.grown, plan)
