"""The checkpoints that a selection compares: every one of a run, or the newest of each point of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from colosseum.bundle import MANIFEST, RECIPE
from colosseum.checkpoint.folders import is_committed, newest_committed, source_folder
from colosseum.errors import RefusedInput
from colosseum.launch.runs.submit import find_run
from colosseum.launch.trials.sweep import find_sweep, overrides_of
from colosseum.reading import Unreadable, read_bytes, read_object
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import Fresh, FromStage
from colosseum.rundir import RunDir, checkpoint_folder, saved_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One checkpoint."""

    name: str
    """How tables call it."""
    run: str
    """Name of its run folder."""
    step: int
    checkpoint: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """What is compared, and where the result goes."""

    folder: Path
    """The run's or the sweep's."""
    entries: tuple[Entry, ...]
    parent: Path | None
    """The checkpoint that all of them began from; None = none, or it is gone."""


def entries_of(name: str, runs: Path) -> Entries:
    """Of a run or a sweep, by name or folder.

    Raises:
        RefusedInput: there is none, or it has no complete checkpoint.
    """
    try:
        sweep = find_sweep(name, runs)
    except RefusedInput:
        return _of_run(find_run(name, runs))
    found = []
    for index, point in enumerate(sweep.points):
        run = sweep.run_of(point)
        if (step := newest_committed(run.checkpoints)) is not None:
            label = f"{index}: {overrides_of(point.values)}"
            folder = checkpoint_folder(run.checkpoints, step)
            found.append(Entry(name=label, run=run.root.name, step=step, checkpoint=folder))
    if not found:
        raise RefusedInput(f"no point of sweep {name} has a complete checkpoint")
    return Entries(folder=sweep.root, entries=tuple(found), parent=parent_of(sweep.run_of(sweep.points[0])))


def _of_run(run: RunDir) -> Entries:
    root = run.root.resolve()
    steps = [s for s in saved_steps(run.checkpoints) if is_committed(checkpoint_folder(run.checkpoints, s))]
    if not steps:
        raise RefusedInput(f"{root.name} has no complete checkpoint")
    found = [
        Entry(name=f"step {s}", run=root.name, step=s, checkpoint=checkpoint_folder(run.checkpoints, s)) for s in steps
    ]
    return Entries(folder=root, entries=tuple(found), parent=parent_of(run))


def parent_of(run: RunDir) -> Path | None:
    """The checkpoint that a run began from; None = it began from none, or it is not there."""
    runs = run.root.resolve().parent
    try:
        lineage = read_object(run.bundle / MANIFEST).get("lineage")
        if isinstance(lineage, dict):
            folder = checkpoint_folder(RunDir(runs / Path(str(lineage["run"])).name).checkpoints, int(lineage["step"]))
        else:
            source = Recipe.from_data(yaml.safe_load(read_bytes(run.bundle / RECIPE))).checkpoint.source
            if isinstance(source, Fresh | FromStage):
                return None
            folder = source_folder(source, runs)
    except (RefusedInput, Unreadable, FileNotFoundError, KeyError, ValueError, yaml.YAMLError):
        return None
    return folder if is_committed(folder) else None
