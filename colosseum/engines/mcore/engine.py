"""Engine ``mcore``: our own runtime on megatron-core. It reads the bundle's recipe and plan, so it needs no files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colosseum.checkpoint.folders import read_metadata
from colosseum.engines import megatron_checkpoints
from colosseum.engines.base import About, EngineLaunch, Setting
from colosseum.errors import Fault
from colosseum.planning.plan import Plan
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, checkpoint_folder, saved_steps


class McoreEngine:
    """See ``engines.base.Engine``."""

    name = "mcore"
    about = About(
        title="Colosseum's own runtime on megatron-core",
        tasks=("cpt", "sft", "dpo"),
        fp8=("delayed", "tensorwise", "blockwise"),
        cp="cpt, sft, dpo",
        container="any with this package, e.g. docker/Dockerfile.mcore",
        image="dockerd://colosseum:mcore",
        reads="its own checkpoints",
    )
    settings: tuple[Setting, ...] = ()
    has_metadata = True

    def pinned(self, recipe: Recipe) -> Recipe:
        return recipe

    def faults(self, recipe: Recipe) -> list[Fault]:
        """What this runtime cannot do yet; the rules between fields (``recipe/rules.py``) are megatron-core's."""
        faults = []
        if recipe.data.reset_attention_mask:
            rule = "engine mcore attends across documents; reset_position_ids and eod_mask_loss work"
            faults.append(Fault(path="data.reset_attention_mask", value=True, rule=rule, nearest=(False,)))
        task = recipe.task
        if task.kind == "dpo" and task.loss.startswith("rpo"):
            rule = "engine mcore reads no rewards of pairs, which this loss compares with"
            faults.append(Fault(path="task.loss", value=task.loss, rule=rule, nearest=("dpo", "ipo", "ipo_by_token")))
        if task.kind == "dpo" and task.reference != "precomputed" and recipe.precision.fp8_params is True:
            rule = "a copy of the reference cannot take the place of weights that are kept in FP8"
            faults.append(Fault(path="task.reference", value=task.reference, rule=rule, nearest=("precomputed",)))
        if task.kind != "cpt" and recipe.tokenizer.kind != "tokenizer_json":
            rule = "engine mcore tokenises rows with a tokenizer.json"
            faults.append(
                Fault(path="tokenizer.kind", value=recipe.tokenizer.kind, rule=rule, nearest=("tokenizer_json",))
            )
        return faults

    def notes(self, recipe: Recipe) -> list[str]:
        return []

    def render(self, recipe: Recipe, plan: Plan) -> EngineLaunch:
        return EngineLaunch(files={}, argv=("python", "-m", "colosseum.runtime", "bundle"))

    def checkpoints(self, run: RunDir, gbs: int) -> dict[int, Path]:
        return {step: checkpoint_folder(run.checkpoints, step) for step in saved_steps(run.checkpoints)}

    def no_checkpoint(self, run: RunDir) -> str:
        return megatron_checkpoints.has_saved_none(run)

    def reference(self, run: RunDir, step: int, path: Path) -> str:
        return megatron_checkpoints.by_step(run, step)

    def is_checkpoint(self, path: Path) -> bool:
        return path.is_dir()

    def model_of(self, checkpoint: Path) -> Mapping[str, Any] | None:
        return read_metadata(checkpoint).model.model_dump()
