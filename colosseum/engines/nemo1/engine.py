"""Engine ``nemo1``: NeMo 1.x pretraining and NeMo-Aligner's SFT and DPO, as the case study ran them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from colosseum.bundle import to_yaml
from colosseum.engines import megatron_checkpoints
from colosseum.engines.base import NEMO_IMAGE, About, Engine, EngineLaunch, Releases, Setting, reference_pinned
from colosseum.engines.foreign import (
    Command,
    Refusals,
    common_faults,
    decay_within_run,
    launch,
    retention_notes,
    stability_notes,
    total_steps,
    validates_in_time,
    without_optimizer,
)
from colosseum.engines.nemo1.config import ACTIVATIONS, LOGS, PREFIX, SCHEDULES, config
from colosseum.engines.nemo1.nemo_file import CONFIG, SHAPE, configuration
from colosseum.errors import Fault
from colosseum.planning.plan import Plan
from colosseum.recipe.base import AUTO
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import Fresh, FromRun, Source
from colosseum.rundir import RunDir

NEMO = {"variable": "NEMO", "default": "/opt/NeMo"}
ALIGNER = {"variable": "NEMO_ALIGNER", "default": "/opt/NeMo-Aligner"}
"""Where a NeMo container has them; checkouts elsewhere are named in the cluster file's env."""
PROGRAMS = {
    "cpt": "examples/nlp/language_modeling/megatron_gpt_pretraining.py",
    "sft": "examples/nlp/gpt/train_gpt_sft.py",
    "dpo": "examples/nlp/gpt/train_gpt_dpo.py",
}
GROUP, FILE = "colosseum", "run"
"""Our YAML as a Hydra config: the last of the defaults list, so it wins over the template."""
CHECKPOINTS = {"folder": f"{LOGS}/checkpoints", "glob": "*", "pattern": r"step=(\d+)(?!.*unfinished)"}
FINAL_NEMO = f"{LOGS}/checkpoints/{PREFIX}.nemo"
"""Inside the folder of a complete run: weights and configuration."""
CPT_LOG = {
    "train": {
        "step": r"global_step=(\d+)",
        "loss": r"reduced_train_loss=([0-9.e+-]+|nan)",
        "step_time_s": r"train_step_timing in s=([0-9.e+-]+)",
    }
}
"""PyTorch Lightning's progress bar, which counts steps from 0."""
ALIGNER_LOG = {
    "train": {
        "step": r"Training steps:[^\r\n]*\|\s*(\d+)/\d+ \[.*train_consumed_samples=",
        "loss": r"train_loss=([0-9.e+-]+|nan)",
        "lr": r"train_lr=([0-9.e+-]+)",
        "grad_norm": r"train_grad_norm=([0-9.e+-]+)",
        "step_time_s": r"train_step_time=([0-9.e+-]+)",
    }
}
"""NeMo-Aligner's progress bar: a step's values come twice, before the bar counts it and after; the second counts."""


class Nemo1Engine(Engine):
    """See ``engines.base.Engine``."""

    name = "nemo1"
    about = About(
        title="NeMo 1.x and NeMo-Aligner, as the case study ran them",
        tasks=("cpt", "sft", "dpo"),
        fp8=("delayed",),
        cp="cpt",
        releases=Releases(image=NEMO_IMAGE, first="24.07", last="25.02"),  # up to NeMo 2.2, the last with its scripts
        image=f"docker://{NEMO_IMAGE}:25.02",
        reads=".nemo files and folders, weights only",
    )
    imported_as = "nemo"
    settings: tuple[Setting, ...] = (
        Setting(
            name="TORCH_NCCL_AVOID_RECORD_STREAMS",
            value="1",
            reason="frees buffers earlier; the default since PyTorch 2.9",
        ),
    )

    def pinned(self, recipe: Recipe) -> Recipe:
        """NeMo-Aligner's DPO has no context parallelism, and its SFT only with packed data, which it is not given. Its
        reference policy is in host memory."""
        recipe = reference_pinned(recipe, "host")
        if recipe.task.kind == "cpt" or recipe.parallelism.cp != AUTO:
            return recipe
        return recipe.model_copy(update={"parallelism": recipe.parallelism.model_copy(update={"cp": 1})})

    def faults(self, recipe: Recipe) -> list[Fault]:
        found = common_faults(self.name, recipe)
        _layout(recipe, found)
        _precision(recipe, found)
        _checkpoint(recipe, found)
        if recipe.task.kind == "cpt":
            _pretraining(recipe, found)
        else:
            _alignment(recipe, found)
        return found.found

    def notes(self, recipe: Recipe) -> list[str]:
        found = ["NeMo 1.x has no hang timeout of its own: NCCL's watchdog ends a hang after its default, 10 minutes"]
        found += [*retention_notes("NeMo 1.x", recipe), *stability_notes("NeMo 1.x", recipe)]
        if recipe.task.kind != "cpt":
            found.append("NeMo-Aligner takes the architecture from the checkpoint's own configuration")
            if recipe.train.log_every_steps != 1:
                found.append("NeMo-Aligner logs every step: train.log_every_steps is ignored")
        return found

    def drops(self, recipe: Recipe) -> list[Fault]:
        """A .nemo holds no optimizer."""
        return without_optimizer("NeMo 1.x" if recipe.task.kind == "cpt" else "NeMo-Aligner", recipe)

    def render(self, recipe: Recipe, plan: Plan) -> EngineLaunch:
        cpt = recipe.task.kind == "cpt"
        command = Command(
            engine="NeMo 1.x" if cpt else "NeMo-Aligner",
            program=PROGRAMS[recipe.task.kind],
            home=NEMO if cpt else ALIGNER,
            image=self.about.image,
            arguments=["--config-dir=bundle/engine", f"+{GROUP}={FILE}"],
            patterns=CPT_LOG if cpt else ALIGNER_LOG,
            first_step=0 if cpt else 1,
            checkpoints={**CHECKPOINTS, "counts": "steps"},
        )
        text = b"# @package _global_\n# Merged over the template of " + command.program.encode() + b"\n"
        return launch(recipe, command, {f"{GROUP}/{FILE}.yaml": text + to_yaml(config(recipe))})

    def checkpoints(self, run: RunDir, gbs: int) -> dict[int, Path]:
        """The last one only."""
        path = run.root / FINAL_NEMO
        return {megatron_checkpoints.latest_step(run): path} if path.exists() else {}

    def no_checkpoint(self, run: RunDir) -> str:
        return f"run {run.root.name} is not complete: NeMo 1.x leaves {FINAL_NEMO} after its last step"

    def reference(self, run: RunDir, step: int, path: Path) -> Source:
        return FromRun(run.root.resolve().name)

    def source_faults(self, recipe: Recipe, runs: Path) -> list[Fault]:
        """A .nemo, file or folder, of this model; an alignment takes its model from there."""
        source = recipe.checkpoint.source
        path = runs / source.run / FINAL_NEMO if isinstance(source, FromRun) else Path(str(source))
        if path.is_dir() and not any(path.iterdir()):
            return [Fault(path="checkpoint.from", value=str(source), rule="is an empty folder")]
        if (holds := configuration(path)) is None:
            rule = f"is no .nemo: {CONFIG} in it cannot be read"
            return [Fault(path="checkpoint.from", value=str(source), rule=rule)]
        return list(_other_model(recipe, holds)) if recipe.task.kind == "cpt" else []

    def model_of(self, checkpoint: Path) -> Mapping[str, Any] | None:
        found = configuration(checkpoint)
        return None if found is None else {key: found[key] for key in SHAPE if isinstance(found.get(key), int)}


def _other_model(recipe: Recipe, holds: Mapping[str, Any]) -> Iterator[Fault]:
    """Sizes of the recipe's model that are not those of the checkpoint's configuration, where that has a number."""
    model = recipe.model
    ours = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.query_groups,
    }
    for name, value in ours.items():
        if isinstance(holds.get(name), int) and holds[name] != value:
            rule = f"is {holds[name]} in the configuration of {recipe.checkpoint.source}"
            yield Fault(path=f"model.{name}", value=value, rule=rule, nearest=(holds[name],))
    rows, padded = holds.get("override_vocab_size"), model.padded_vocab(int(recipe.parallelism.tp))
    if isinstance(rows, int) and rows != padded:
        rule = (
            f"is padded to {padded} rows, and {recipe.checkpoint.source} has {rows} (override_vocab_size); to keep "
            f"them: model.vocab_size={rows} model.make_vocab_size_divisible_by=1"
        )
        yield Fault(path="model.vocab_size", value=model.vocab_size, rule=rule, nearest=(rows,))


def _layout(recipe: Recipe, found: Refusals) -> None:
    par, rec = recipe.parallelism, recipe.recompute
    for name in ("first_stage_layers", "last_stage_layers"):
        value = getattr(par, name)
        rule = "needs the same number of layers on every pipeline rank; mcore, megatron-lm and nemo2 do not"
        found.unless(value is None, f"parallelism.{name}", value, rule, None)
    embedding, loss = par.account_for_embedding_in_pipeline_split, par.account_for_loss_in_pipeline_split
    found.unless(
        embedding == loss,
        "parallelism.account_for_loss_in_pipeline_split",
        loss,
        "counts embedding and loss as layers only together; mcore and megatron-lm can count one of them",
        embedding,
    )
    plain = rec.granularity != "selective" or rec.modules == ("core_attn",)
    rule = "recomputes core_attn only; mcore, megatron-lm and nemo2 also other modules"
    found.unless(plain, "recompute.modules", list(rec.modules), rule, ["core_attn"])
    cfg = recipe.overlap.tp_comm_cfg
    found.unless(cfg is None, "overlap.tp_comm_cfg", cfg, "takes its overlap profile from its own config group", None)


def _precision(recipe: Recipe, found: Refusals) -> None:
    precision = recipe.precision
    rule = "scales FP8 with delayed scaling only; mcore, megatron-lm and nemo2 can do this"
    found.unless(precision.fp8 in ("none", "delayed"), "precision.fp8", precision.fp8, rule, "delayed", "none")
    rule = "keeps Adam's moments in fp32; mcore, megatron-lm and nemo2 also in bf16"
    found.unless(precision.moments_dtype == "fp32", "precision.moments_dtype", precision.moments_dtype, rule, "fp32")
    schedule = recipe.optimizer.lr_schedule
    rule = "has no linear decay to min_lr and no wsd; mcore, megatron-lm and bridge have"
    found.unless(schedule in SCHEDULES, "optimizer.lr_schedule", schedule, rule, *SCHEDULES)
    decay_within_run(recipe, found)


def _checkpoint(recipe: Recipe, found: Refusals) -> None:
    checkpoint = recipe.checkpoint
    rule = "starts from the last weights (.nemo) of a complete run, not from one of its steps"
    source = checkpoint.source
    if isinstance(source, FromRun) and source.step is not None:
        found.add("checkpoint.from", str(source), rule, str(FromRun(source.run)))


def _pretraining(recipe: Recipe, found: Refusals) -> None:
    validates_in_time(recipe, found)
    model, tokenizer = recipe.model, recipe.tokenizer
    rule = "does not support YaRN; mcore does"
    kind = model.rope_scaling_type
    found.unless(kind != "yarn", "model.rope_scaling_type", kind, rule, "llama3", "linear")
    rule = "has no QK layernorm; mcore, megatron-lm and nemo2 have it"
    found.unless(not model.qk_layernorm, "model.qk_layernorm", True, rule, False)
    rule = "NeMo 1.x cannot train without a tokenizer; mcore and megatron-lm can on token ids"
    known = tokenizer.kind != "null" and tokenizer.path is not None
    found.unless(known, "tokenizer.path", tokenizer.path, rule)
    gamma = "model.layernorm_zero_centered_gamma"
    rule = "supports zero-centered gamma for LayerNorm only; mcore, megatron-lm and nemo2 also for RMSNorm"
    found.unless(
        model.normalization == "LayerNorm" or not model.layernorm_zero_centered_gamma, gamma, True, rule, False
    )
    found.unless(
        (model.activation_func, model.gated_linear_unit) in ACTIVATIONS,
        "model.activation_func",
        model.activation_func,
        f"has no name for this with gated_linear_unit {str(model.gated_linear_unit).lower()}; mcore can",
    )


def _alignment(recipe: Recipe, found: Refusals) -> None:
    task, cp = recipe.task, recipe.parallelism.cp
    if task.kind == "dpo":
        rule = "NeMo-Aligner's DPO has no context parallelism (only its branch dev has)"
        found.unless(cp in (1, AUTO), "parallelism.cp", cp, rule, 1)
        rule = "NeMo-Aligner always swaps the reference policy in from host memory"
        found.unless(task.reference in ("host", AUTO), "task.reference", task.reference, rule, AUTO, "host")
        rule = "NeMo-Aligner's reference policy is the checkpoint that training starts from"
        found.unless(task.reference_from is None, "task.reference_from", str(task.reference_from), rule)
        rule = "NeMo-Aligner's IPO sums over the tokens of a response"
        found.unless(task.loss != "ipo_by_token", "task.loss", task.loss, rule, "ipo")
        found.unless(task.shuffle, "task.shuffle", False, "NeMo-Aligner's DPO always shuffles", True)
    else:
        rule = "NeMo-Aligner's SFT supports context parallelism only with packed data; nemo2 can use it without"
        found.unless(cp in (1, AUTO), "parallelism.cp", cp, rule, 1)
    for name in ("train", "validation"):
        value = getattr(recipe.data, name)
        found.unless(value is not None, f"data.{name}", value, f"NeMo-Aligner needs a {name} file")
    rule = "NeMo-Aligner needs a checkpoint: it reads the model's configuration from it"
    source = recipe.checkpoint.source
    found.unless(source != Fresh(), "checkpoint.from", str(source), rule)
    rule = "NeMo-Aligner has no asynchronous saves"
    found.unless(not recipe.checkpoint.async_save, "checkpoint.async", True, rule, False)
    train = recipe.train
    known = train.epochs is not None or (recipe.data.train_samples is not None and total_steps(recipe) > 0)
    rule = "NeMo-Aligner counts epochs: set train.epochs, or data.train_samples"
    found.unless(known, "train.epochs", train.epochs, rule)
