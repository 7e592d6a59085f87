"""Engine ``mcore``: our own runtime on megatron-core. It reads the bundle's recipe and plan, so it needs no files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from colosseum.checkpoint.compare import load_faults, steps_go_on
from colosseum.checkpoint.folders import read_metadata, source_folder
from colosseum.engines.base import About, Engine, EngineLaunch, reference_pinned
from colosseum.errors import Fault, RefusedInput
from colosseum.planning.plan import Plan
from colosseum.recipe import derived
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, checkpoint_folder, saved_steps


class McoreEngine(Engine):
    """See ``engines.base.Engine``."""

    name = "mcore"
    about = About(
        title="Colosseum's own runtime on megatron-core",
        tasks=("cpt", "sft", "dpo"),
        fp8=("delayed", "tensorwise", "blockwise"),
        cp="cpt, sft, dpo",
        releases=None,
        image="dockerd://colosseum:mcore",
        reads="its own checkpoints",
    )
    has_metadata = True

    def pinned(self, recipe: Recipe) -> Recipe:
        """Log-probs that are computed once cost least: no copy of the weights, no forward pass in each step."""
        return reference_pinned(recipe, "precomputed")

    def faults(self, recipe: Recipe) -> list[Fault]:
        """What this runtime cannot do yet; the rules between fields (``recipe/rules.py``) are megatron-core's."""
        faults = []
        if recipe.data.reset_attention_mask:
            rule = "engine mcore always attends across documents; reset_position_ids and eod_mask_loss are supported"
            faults.append(Fault(path="data.reset_attention_mask", value=True, rule=rule, nearest=(False,)))
        masks = [name for name in ("eod_mask_loss", "reset_position_ids") if getattr(recipe.data, name)]
        if masks and recipe.tokenizer.kind != "null" and recipe.tokenizer.path is None:
            rule = f"must name the tokenizer's file: data.{masks[0]} needs the end-of-document token"
            faults.append(Fault(path="tokenizer.path", value=None, rule=rule))
        task = recipe.task
        if task.kind == "dpo" and task.reference in ("resident", "host") and recipe.precision.fp8_params is True:
            rule = "a copy of the reference cannot be swapped in while weights are stored in FP8"
            faults.append(Fault(path="task.reference", value=task.reference, rule=rule, nearest=("precomputed",)))
        faults += _lora_faults(recipe)
        if task.kind != "cpt" and recipe.tokenizer.kind != "tokenizer_json":
            rule = "engine mcore needs a tokenizer.json for sft and dpo"
            faults.append(
                Fault(path="tokenizer.kind", value=recipe.tokenizer.kind, rule=rule, nearest=("tokenizer_json",))
            )
        return faults

    def render(self, recipe: Recipe, plan: Plan) -> EngineLaunch:
        return EngineLaunch(files={}, argv=("python", "-P", "-m", "colosseum.runtime", "bundle"))

    def checkpoints(self, run: RunDir, gbs: int) -> dict[int, Path]:
        return {step: checkpoint_folder(run.checkpoints, step) for step in saved_steps(run.checkpoints)}

    def source_faults(self, recipe: Recipe, runs: Path) -> list[Fault]:
        """There must be a finished checkpoint of this model, and steps left to train after it."""
        source, total = recipe.checkpoint.source, derived.total_steps(recipe)
        try:
            found = read_metadata(source_folder(source, runs))
        except RefusedInput as refused:
            return [Fault(path="checkpoint.from", value=str(source), rule=str(refused))]
        step, rules = found.step, load_faults(recipe, found, recipe.checkpoint.load)
        faults = [Fault(path="checkpoint.from", value=str(source), rule=rule) for rule in rules]
        if not steps_go_on(recipe.checkpoint.load) or total is None or step < total:
            return faults
        field = next(name for name in ("steps", "tokens", "epochs") if getattr(recipe.train, name) is not None)
        rule = f"checkpoint is already at step {step}; increase train.{field}"
        nearest = (step + 1,) if field == "steps" else ()
        return [*faults, Fault(path=f"train.{field}", value=getattr(recipe.train, field), rule=rule, nearest=nearest)]

    def model_of(self, checkpoint: Path) -> Mapping[str, Any] | None:
        return read_metadata(checkpoint).model.model_dump()


def _lora_faults(recipe: Recipe) -> Iterator[Fault]:
    """What frozen weights cannot be combined with."""
    task = recipe.task
    if recipe.lora is None:
        return
    if recipe.precision.fp8_params is True:
        rule = "LoRA cannot be merged into FP8 weights: they are too coarse"
        yield Fault(path="precision.fp8_params", value=True, rule=rule, nearest=(False,))
    if recipe.overlap.defer_embedding_wgrad_compute:
        rule = "with LoRA the embedding is frozen and has no gradient"
        yield Fault(path="overlap.defer_embedding_wgrad_compute", value=True, rule=rule, nearest=(False,))
    if task.kind == "dpo" and task.reference in ("resident", "host") and task.reference_from is not None:
        rule = "with LoRA the reference is the frozen model; another one is precomputed"
        yield Fault(path="task.reference", value=task.reference, rule=rule, nearest=("precomputed",))
