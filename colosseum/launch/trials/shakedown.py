"""Shakedown, a smoke test on the cluster: the same job on the fewest GPUs that fit, 20 steps with save and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from colosseum.checkpoint.compare import steps_go_on
from colosseum.checkpoint.folders import read_metadata, source_folder
from colosseum.engines.planned import plan as plan_of
from colosseum.errors import RefusedInput
from colosseum.launch.bundles.compile import Compiled, compile_bundle
from colosseum.launch.runs.report import size_text
from colosseum.launch.runs.request import NewRun
from colosseum.launch.runs.submit import launch
from colosseum.launch.schedulers.base import Queue, Say, Scheduler
from colosseum.launch.schedulers.registry import scheduler_of
from colosseum.recipe import derived
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import Fresh
from colosseum.units import parse_duration_s

STEPS, STOP_AFTER = 20, 10
LONGEST_S = 3600


def shakedown_of(full: Compiled, runs: Path) -> Compiled:
    """The small job: the layout of the full one on its fewest whole replicas that fit the memory.

    Args:
        runs: where ``run:`` names are looked up.

    Raises:
        RefusedInput: the cluster has no queue.
    """
    recipe, layout = full.recipe, full.plan.layout
    if not isinstance(scheduler_of(recipe.cluster.scheduler), Queue):
        raise RefusedInput("--shakedown needs a cluster with a queue; on this machine use `colosseum rehearse`")
    first = _first_step(recipe, runs)
    replica = layout.tp * layout.pp * layout.cp
    per_node = recipe.resources.gpus_per_node
    for dp in (d for d in range(1, layout.dp + 1) if layout.dp % d == 0):
        gpus = replica * dp
        if gpus > per_node and gpus % per_node:
            continue
        small = _small(recipe, gpus, layout.mbs * layout.microbatches * dp, first)
        plan = plan_of(small)
        if plan.fits or dp == layout.dp:
            return compile_bundle(small, plan, stop_after_step=first + STOP_AFTER)
    raise RefusedInput(f"{recipe.name}: no smaller number of its {layout.dp} replicas fills whole nodes")


def submit_shakedown(new: NewRun, scheduler: Scheduler, say: Say) -> str:
    """Submits the small job of a run, in a run folder of its own; its job id.

    Raises:
        RefusedInput, EnvironmentFault: as ``shakedown_of`` and ``launch``.
    """
    small = shakedown_of(new.compiled, new.runs)
    run, submission = launch(small, scheduler, new.runs, shown=new.shown)
    say(f"shakedown submitted as job {submission.job_id}: {size_text(run, small.recipe)}\nrun {run.root}")
    return submission.job_id


def _small(recipe: Recipe, gpus: int, gbs: int, first: int) -> Recipe:
    data: dict[str, Any] = recipe.as_data()
    data["name"] = f"{recipe.name[:54]}-shakedown"
    data["resources"]["gpus"] = gpus
    data["resources"]["time_limit"] = f"{min(parse_duration_s(recipe.resources.time_limit), LONGEST_S)}s"
    data["batch"]["gbs"] = gbs
    steps = first + STEPS
    data["train"] |= {"steps": steps, "tokens": None, "epochs": None, "val_every_steps": steps}
    data["checkpoint"] |= {"every_steps": steps, "keep_every": None}
    data["optimizer"] |= {"warmup_steps": min(derived.warmup_steps(recipe), STEPS - 1), "warmup_fraction": None}
    if recipe.optimizer.lr_schedule == "wsd":  # its decay may be longer than a shakedown
        data["optimizer"]["decay_steps"] = derived.decay_steps(recipe)
    return Recipe.from_data(data)


def _first_step(recipe: Recipe, runs: Path) -> int:
    """The step that the run starts after: the checkpoint's if the optimizer is loaded, else 0."""
    source = recipe.checkpoint.source
    if source == Fresh() or not steps_go_on(recipe.checkpoint.load):
        return 0
    return read_metadata(source_folder(source, runs)).step
