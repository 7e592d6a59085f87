"""``colosseum plan``: a recipe's layout, memory, time and cost; near misses, scaling, sweeps. Nothing is started."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from colosseum.cli.arguments import RecipeWords, recipe_and_overrides
from colosseum.cli.output import Cluster, Json, document, emit, say, warn
from colosseum.engines.plan_request import PlanRequest, gpu_counts, plan_lines
from colosseum.errors import RefusedInput
from colosseum.planning.constants import read_calibration
from colosseum.planning.nearmiss import NearMisses, idle_nodes
from colosseum.planning.report import plan_report, scaling_report
from colosseum.planning.scaling import as_json as scaling_json
from colosseum.planning.scaling import scaling_table


def plan(
    words: RecipeWords,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="N[,M]...", help="Plan for N GPUs; several: a scaling table."),
    ] = None,
    top: Annotated[
        int,
        typer.Option(
            "--top", min=0, max=1000, help="Number of other layouts to show, each with the reason against it."
        ),
    ] = 5,
    free: Annotated[
        bool,
        typer.Option("--free", help="Let the planner choose the whole layout, also fields that the recipe sets."),
    ] = False,
    batch: Annotated[
        Path | None,
        typer.Option(
            "--batch",
            metavar="FILE",
            help='Plan each line {"id": ..., "overrides": [...]} of FILE (- is stdin); prints one JSON line each.',
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", metavar="FILE", help="Constants measured with `colosseum calibrate`."),
    ] = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Choose the `auto` fields of a recipe; predict memory, time and cost."""
    name, overrides = recipe_and_overrides(words)
    measured = None if calibration is None else read_calibration(calibration)
    task = PlanRequest(name=name, overrides=tuple(overrides), cluster=cluster, calibration=measured, top=top, free=free)
    counts = gpu_counts(gpus)
    if batch is not None:
        if counts:
            raise RefusedInput("--batch cannot be combined with --gpus: put resources.gpus=N in the overrides")
        for answer in plan_lines(task, batch):
            document(answer)
    elif len(counts) > 1:
        recipe, warnings = task.recipe()
        points = scaling_table(recipe, counts, dataclasses.replace(task, top=0).solve)
        warn(warnings)
        emit(as_json, scaling_json(points), lambda: scaling_report(points))
    else:
        _one(dataclasses.replace(task, overrides=(*overrides, *(f"resources.gpus={n}" for n in counts))), as_json)


def _one(task: PlanRequest, as_json: bool) -> None:
    try:
        recipe, warnings, found = task.plan()
    except NearMisses as refused:
        if not as_json:
            _show_near_misses(refused)
        raise
    warn(warnings)
    emit(as_json, found.as_json(), lambda: plan_report(task.name, recipe, found))


def _show_near_misses(refused: NearMisses) -> None:
    say("This recipe is not valid. Nearest valid ones, most tokens per day first:")
    for miss in refused.misses:
        say(f"  {miss.sentence()}")
    if sentence := idle_nodes(refused.subject):
        say(sentence)
