"""Engine ``bridge``: pretraining, SFT and LoRA through Megatron-Bridge, NVIDIA's successor of NeMo 2."""

from __future__ import annotations

from pathlib import Path

from colosseum.engines import calls, megatron_checkpoints
from colosseum.engines.base import NEMO_IMAGE, About, Engine, EngineLaunch, Releases
from colosseum.engines.bridge.config import first_words, launch_tree
from colosseum.engines.foreign import (
    RUN,
    Command,
    Refusals,
    common_faults,
    continues,
    launch,
    loads_optimizer,
    path_faults,
    rows_in_one_folder,
    stability_notes,
)
from colosseum.engines.megatron_lm.engine import PATTERNS
from colosseum.errors import Fault
from colosseum.planning.plan import Plan
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import Fresh
from colosseum.rundir import RunDir

TREE = "bridge.json"
FINISH = "megatron.bridge.training.config:runtime_config_update"
"""What Bridge's own training calls before anything else."""


class BridgeEngine(Engine):
    """See ``engines.base.Engine``."""

    name = "bridge"
    about = About(
        title="Megatron-Bridge, NVIDIA's successor of NeMo 2",
        tasks=("cpt", "sft"),
        fp8=("delayed", "tensorwise", "blockwise"),
        cp="cpt, sft",
        releases=Releases(image=NEMO_IMAGE, first="26.08", last="26.08"),  # Bridge 0.6, megatron-core 0.19
        image=f"docker://{NEMO_IMAGE}:26.08",
        reads="Megatron-Bridge's and Megatron-LM's torch_dist checkpoints: weights, optimizer",
    )

    def faults(self, recipe: Recipe) -> list[Fault]:
        found = common_faults(self.name, recipe, trains_lora=True)
        kind, model = recipe.task.kind, recipe.model
        found.unless(kind != "dpo", "task.kind", kind, "has no DPO; nemo1 (NeMo-Aligner) does", "cpt", "sft")
        longest, learned = model.max_position_embeddings, model.position_embedding_type == "learned_absolute"
        rule = "learns as many positions as batch.seq_length; mcore can have more"
        fits = not learned or longest in (None, recipe.batch.seq_length)
        found.unless(fits, "model.max_position_embeddings", longest, rule, recipe.batch.seq_length)
        interval = recipe.precision.fp8_interval
        rule = "has no FP8 interval: Transformer Engine has ignored it since 1.8"
        found.unless(recipe.precision.fp8 == "none" or interval == 1, "precision.fp8_interval", interval, rule, 1)
        found.unless_loadable(recipe)
        rule = "begins adapters from weights only; mcore also with their optimizer"
        adapted = recipe.lora is None or not loads_optimizer(recipe)
        found.unless(adapted, "checkpoint.load", list(recipe.checkpoint.load), rule, ["weights"])
        if kind == "sft":
            rows_in_one_folder(recipe, found)
            _begins_from_weights(recipe, found)
        return found.found

    def notes(self, recipe: Recipe) -> list[str]:
        every, found = recipe.checkpoint.keep_every, stability_notes("Megatron-Bridge", recipe)
        if recipe.checkpoint.keep_last is not None and every is not None:
            found.append(f"Megatron-Bridge does not keep every {every:,} steps: checkpoint.keep_every is ignored")
        if recipe.task.kind == "sft" and recipe.task.format == "prompt_response":
            found.append("Megatron-Bridge reads the keys input and output of a row, not prompt and response")
        return found

    def render(self, recipe: Recipe, plan: Plan) -> EngineLaunch:
        command = Command(
            engine="Megatron-Bridge",
            program=calls.PROGRAM,
            home=None,
            image=self.about.image,
            arguments=(TREE,),
            first=first_words(recipe),
            patterns=PATTERNS,
            scales={"step_time_s": 1e-3},
            checkpoints={"folder": RUN.checkpoints.name, "glob": None, "pattern": None, "counts": "steps"},
            continues=continues(recipe),
            checks={"tree": TREE, "node": "config", "finish": FINISH},
        )
        return launch(recipe, command, calls.files(TREE, launch_tree(recipe)))

    def checkpoints(self, run: RunDir, gbs: int) -> dict[int, Path]:
        return megatron_checkpoints.up_to_tracker(run)

    def source_faults(self, recipe: Recipe, runs: Path) -> list[Fault]:
        return path_faults(recipe, megatron_checkpoints.unfinished)


def _begins_from_weights(recipe: Recipe, found: Refusals) -> None:
    source = recipe.checkpoint.source
    rule = "fine-tunes a checkpoint: finetune() does not start without one"
    found.unless(source != Fresh(), "checkpoint.from", str(source), rule)
