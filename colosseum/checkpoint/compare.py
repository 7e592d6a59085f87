"""Whether a checkpoint can be loaded as a recipe says: asked on the login node, by gates and by the ranks."""

from __future__ import annotations

from colosseum.checkpoint.metadata import CheckpointMetadata, ModelShape
from colosseum.recipe.schema import Recipe


def load_faults(recipe: Recipe, found: CheckpointMetadata, what: tuple[str, ...]) -> list[str]:
    """What keeps the parts ``what`` of a checkpoint from being loaded into the recipe's model."""
    shape = ModelShape.of(recipe)
    faults = [f"the checkpoint is of another model: {text}" for text in found.model.differences(shape)]
    if found.model.num_layers < shape.num_layers:
        faults.append(f"a model grows by `colosseum checkpoint expand`, not by a load: {shape.num_layers} layers")
    if "optimizer" in what and not found.has_optimizer:
        faults.append("the checkpoint holds weights only: checkpoint.load=[weights] loads them")
    elif "optimizer" in what and found.dtype != recipe.precision.dtype:
        faults.append(f"the checkpoint is {found.dtype} and the recipe {recipe.precision.dtype}: load weights only")
    if "optimizer" in what and found.lora != recipe.lora:
        faults.append("its LoRA adapters are not the recipe's: checkpoint.load=[weights] merges them into the weights")
    return faults


def load_notes(recipe: Recipe, found: CheckpointMetadata) -> list[str]:
    """What changes and may."""
    pairs = [("dtype", found.dtype, recipe.precision.dtype), ("FP8", found.fp8, recipe.precision.fp8)]
    changed = [f"{name} {before} → {after}" for name, before, after in pairs if before != after]
    return found.model.changes(ModelShape.of(recipe)) + changed
