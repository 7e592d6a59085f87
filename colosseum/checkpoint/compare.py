"""Checks that a checkpoint can be loaded as a recipe says: on the login node, in gates and in the ranks."""

from __future__ import annotations

from colosseum.checkpoint.metadata import CheckpointMetadata, ModelShape
from colosseum.recipe.schema import Recipe


def load_faults(recipe: Recipe, found: CheckpointMetadata, what: tuple[str, ...]) -> list[str]:
    """Why the parts ``what`` of a checkpoint cannot be loaded into the recipe's model; empty = they can."""
    shape = ModelShape.of(recipe)
    faults = [f"the checkpoint is of another model: {text}" for text in found.model.differences(shape)]
    if found.model.num_layers < shape.num_layers:
        more = f"the recipe has {shape.num_layers} layers, more than the checkpoint"
        faults.append(f"{more}: grow it with `colosseum checkpoint expand`")
    if "optimizer" in what and not found.has_optimizer:
        faults.append("the checkpoint contains weights only: set checkpoint.load=[weights]")
    elif "optimizer" in what and found.dtype != recipe.precision.dtype:
        faults.append(f"the checkpoint is {found.dtype}, the recipe {recipe.precision.dtype}: load weights only")
    if "optimizer" in what and found.lora != recipe.lora:
        faults.append(
            "its LoRA adapters differ from the recipe's: checkpoint.load=[weights] merges them into the weights"
        )
    return faults


def steps_go_on(what: tuple[str, ...]) -> bool:
    """Whether a run that loads these parts resumes at the checkpoint's step; else it starts at step 0.

    With the optimizer but not the place in the data it is a new stage that begins with Adam's moments.
    """
    return {"optimizer", "data"} <= {*what}


def load_notes(recipe: Recipe, found: CheckpointMetadata) -> list[str]:
    """Differences that are allowed."""
    pairs = [("dtype", found.dtype, recipe.precision.dtype), ("FP8", found.fp8, recipe.precision.fp8)]
    changed = [f"{name} {before} → {after}" for name, before, after in pairs if before != after]
    return found.model.changes(ModelShape.of(recipe)) + changed
