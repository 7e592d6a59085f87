"""Engine ``nemo2``: pretraining and chat SFT through nemo.collections.llm (NeMo 2)."""

from __future__ import annotations

import re
from pathlib import Path

from colosseum.engines import calls
from colosseum.engines.base import NEMO_IMAGE, About, Engine, EngineLaunch, Releases
from colosseum.engines.foreign import (
    Command,
    Refusals,
    common_faults,
    decay_within_run,
    launch,
    path_faults,
    retention_notes,
    rows_in_one_folder,
    stability_notes,
    validates_in_time,
)
from colosseum.engines.nemo2.config import LOGS, SCHEDULES, launch_tree
from colosseum.errors import Fault
from colosseum.planning.plan import Plan
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import Fresh, FromPath, FromRun, Source
from colosseum.rundir import RunDir
from colosseum.units import parse_duration_s

TREE = "nemo2.json"
SAMPLES = r"consumed_samples=(\d+)(?!.*unfinished)"
"""In the name of a checkpoint folder: NeMo 2 names no step, but the samples until then."""
CHECKPOINTS = {"folder": f"{LOGS}/checkpoints", "glob": "*", "pattern": SAMPLES}
LOG = {
    "train": {
        "step": r"Training epoch \d+, iteration (\d+)/",
        "loss": r"reduced_train_loss: ([0-9.e+-]+|nan)",
        "lr": r"\| lr: ([0-9.e+-]+)",
        "step_time_s": r"train_step_timing in s: ([0-9.e+-]+)",
    }
}
"""Of NeMo 2's progress printer, which counts steps from 0."""


class Nemo2Engine(Engine):
    """See ``engines.base.Engine``."""

    name = "nemo2"
    about = About(
        title="NeMo 2, nemo.collections.llm",
        tasks=("cpt", "sft"),
        fp8=("delayed", "tensorwise", "blockwise"),
        cp="cpt, sft",
        releases=Releases(image=NEMO_IMAGE, first="25.04", last="25.11"),
        image=f"docker://{NEMO_IMAGE}:25.04",
        reads="NeMo 2 checkpoint folders: weights, optimizer",
    )

    def faults(self, recipe: Recipe) -> list[Fault]:
        found = common_faults(self.name, recipe)
        kind = recipe.task.kind
        found.unless(kind != "dpo", "task.kind", kind, "has no DPO; nemo1 (NeMo-Aligner) does", "cpt", "sft")
        _numerics(recipe, found)
        _checkpoint(recipe, found)
        validates_in_time(recipe, found)
        if kind == "sft":
            rows_in_one_folder(recipe, found)
        return found.found

    def notes(self, recipe: Recipe) -> list[str]:
        return [*retention_notes("NeMo 2", recipe), *stability_notes("NeMo 2", recipe)]

    def render(self, recipe: Recipe, plan: Plan) -> EngineLaunch:
        command = Command(
            engine="NeMo 2",
            program=calls.PROGRAM,
            home=None,
            image=self.about.image,
            arguments=(TREE,),
            patterns=LOG,
            first_step=0,
            # MegatronStrategy takes the timeout of its process groups from there.
            env={"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(int(parse_duration_s(recipe.stability.hang_timeout)))},
            checkpoints={**CHECKPOINTS, "counts": "samples"},
            checks={"tree": TREE, "node": None, "finish": None},
        )
        return launch(recipe, command, calls.files(TREE, launch_tree(recipe)))

    def checkpoints(self, run: RunDir, gbs: int) -> dict[int, Path]:
        found = {}
        for path in sorted((run.root / LOGS / "checkpoints").glob("*")):
            samples = re.search(SAMPLES, path.name)
            if samples and path.is_dir() and not path.with_name(f"{path.name}-unfinished").exists():
                found[int(samples[1]) // gbs] = path
        return dict(sorted(found.items()))

    def reference(self, run: RunDir, step: int, path: Path) -> Source:
        return FromPath(str(path.resolve()))  # its folders have names of their own

    def source_faults(self, recipe: Recipe, runs: Path) -> list[Fault]:
        return path_faults(recipe, _unfinished)


def _unfinished(path: Path) -> str | None:
    """Why NeMo 2 cannot start from a folder; None = it can."""
    if path.with_name(f"{path.name}-unfinished").exists():
        return "is unfinished: the save was cut off"
    if any((folder / ".metadata").is_file() for folder in (path / "weights", path)):
        return None
    return "is no NeMo 2 checkpoint: it has no weights/.metadata"


def _numerics(recipe: Recipe, found: Refusals) -> None:
    scaled, kind = recipe.model.rope_scaling is not None, recipe.model.rope_scaling_type
    rule = "supports RoPE scaling linear, and llama3 in its Llama 3.1 models; mcore supports all kinds"
    found.unless(not scaled or kind == "linear", "model.rope_scaling_type", kind, rule, "linear")
    schedule = recipe.optimizer.lr_schedule
    rule = "has no linear decay to min_lr and no wsd; mcore, megatron-lm and bridge have"
    found.unless(schedule in SCHEDULES, "optimizer.lr_schedule", schedule, rule, *SCHEDULES)
    decay_within_run(recipe, found)
    interval = recipe.precision.fp8_interval
    rule = "has no FP8 interval: Transformer Engine has ignored it since 1.8"
    found.unless(recipe.precision.fp8 == "none" or interval == 1, "precision.fp8_interval", interval, rule, 1)
    cfg = recipe.overlap.tp_comm_cfg
    rule = "takes an overlap profile as a Python object, not a file; megatron-lm takes a file"
    found.unless(cfg is None, "overlap.tp_comm_cfg", cfg, rule, None)


def _checkpoint(recipe: Recipe, found: Refusals) -> None:
    checkpoint, source = recipe.checkpoint, recipe.checkpoint.source
    rule = "loads weights, or weights and optimizer; mcore also loads data and rng"
    weights = checkpoint.load in (("weights",), ("weights", "optimizer"))
    found.unless(source == Fresh() or weights, "checkpoint.load", list(checkpoint.load), rule, ["weights"])
    rule = "needs the path of a NeMo 2 checkpoint folder (RUN/nemo/checkpoints/…)"
    found.unless(not isinstance(source, FromRun), "checkpoint.from", str(source), rule)
