"""Where a run starts: its own newest complete checkpoint, else ``checkpoint.from``, else step 0."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch.distributed as dist

from colosseum.checkpoint import folders
from colosseum.checkpoint.compare import load_notes
from colosseum.checkpoint.metadata import CheckpointMetadata
from colosseum.errors import RefusedInput
from colosseum.recipe import derived
from colosseum.recipe.hash import recipe_hash
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import Fresh, Source
from colosseum.rundir import RunDir, checkpoint_folder, read_lines, saved_steps
from colosseum.runtime import device, loading
from colosseum.runtime.failures import ConfigFailure
from colosseum.runtime.metrics import MetricsWriter
from colosseum.runtime.saving import Saver
from colosseum.runtime.stability.ladder import Rewound
from colosseum.runtime.state import State, Training
from colosseum.runtime.tasks.base import Setup
from colosseum.terminal import one_line

EVERYTHING = ("weights", "optimizer", "data", "rng")


def setup(run: RunDir, training: Training) -> Setup:
    """The weights that a run started from, also where it is started again: the model as it was built has the seed's."""

    def folder_of(source: Source | None) -> Path | None:
        if source is not None:
            return folders.source_folder(source, run.root.parent)
        start = training.recipe.checkpoint.source
        return None if start == Fresh() else _start_folder(run, start)

    def load_start(source: Source | None) -> None:
        if (folder := folder_of(source)) is not None:
            loading.load(training, folder, folders.read_metadata(folder), ("weights",))

    def identity_of(source: Source | None) -> str:
        folder = folder_of(source)
        if folder is None:
            return f"the first weights of {recipe_hash(training.recipe)}"
        return json.dumps({name: found.xxh3 for name, found in sorted(folders.read_metadata(folder).files.items())})

    return Setup(model=training.model, references=run.references, load_start=load_start, identity_of=identity_of)


def begin(run: RunDir, attempt: int, training: Training, saver: Saver, writer: MetricsWriter | None) -> State:
    """Loads the state to start or resume from; every rank calls it.

    Raises:
        ConfigFailure: the run has no complete checkpoint, or the one to start from cannot be loaded.
    """
    recipe = training.recipe
    saver.last_saved_step = own = _newest_whole(run, attempt, writer)
    if own is not None:
        folder = checkpoint_folder(run.checkpoints, own)
        what: tuple[str, ...] = EVERYTHING
    elif recipe.checkpoint.source != Fresh():
        folder, what = _start_folder(run, recipe.checkpoint.source), recipe.checkpoint.load
    else:
        return State()
    start = device.wall_s()
    metadata = folders.read_metadata(folder)
    if own is not None:
        _same_run(run, recipe, folder, metadata, writer)
    elif changed := loading.changed_files(folder, metadata):
        raise ConfigFailure(f"{_damage(folder, changed)}; resume from an earlier step with --from RUN@STEP")
    state = loading.load(training, folder, metadata, what)
    dist.barrier()
    if writer:
        size = sum(file.bytes for file in metadata.files.values())
        writer.row("load", state.step, time_s=device.wall_s() - start, bytes=size)
        if changes := load_notes(recipe, metadata):
            _say(writer, "model_changed", state.step, f"changed since {folder.name}: {', '.join(changes)}")
        if "data" in what and state.consumed_samples != metadata.consumed_samples:
            reason = (
                "data, blend, split, seed or sequence length differ from the checkpoint's: data restart at sample 0"
            )
            _say(writer, "new_data_epoch", state.step, reason, checkpoint=str(folder))
    if state.step >= (derived.total_steps(recipe) or 0):
        raise ConfigFailure(f"checkpoint is already at step {state.step}; increase train.steps ({folder})")
    return state


def rewind(run: RunDir, attempt: int, training: Training, saver: Saver, writer: MetricsWriter | None) -> State:
    """Loads the run's newest whole checkpoint into a run that trains; every rank calls it.

    Raises:
        ConfigFailure: none is whole.
    """
    saver.last_saved_step = own = _newest_whole(run, attempt, writer)
    if own is None:
        raise ConfigFailure(f"{run.checkpoints} holds no checkpoint any more")
    folder = checkpoint_folder(run.checkpoints, own)
    return loading.load(training, folder, folders.read_metadata(folder), EVERYTHING)


def rewinds(run: RunDir) -> list[Rewound]:
    """How the run went back in all its attempts; every rank calls it."""
    names = [field.name for field in fields(Rewound)]
    rows = [row for row in read_lines(run.events, holding=b'"rewind"') if row.get("kind") == "rewind"]
    whole = [row for row in _agreed(rows) if all(isinstance(row.get(name), int | float) for name in names)]
    return [Rewound(**{name: row[name] for name in names}) for row in whole]


def _start_folder(run: RunDir, source: Source) -> Path:
    """The checkpoint that ``checkpoint.from`` names, expanded or converted where a gate did so."""
    for prepared in (run.grown, run.converted):
        if (step := folders.newest_committed(prepared / "checkpoints")) is not None:
            return checkpoint_folder(prepared / "checkpoints", step)
    return folders.source_folder(source, run.root.parent)


def _say(writer: MetricsWriter | None, kind: str, step: int, reason: str, **more: Any) -> None:
    """One line in the log and one event."""
    if writer:
        writer.event(kind, step, reason=reason, **more)
        sys.stdout.write(f"{reason}\n")
        sys.stdout.flush()


def _newest_whole(run: RunDir, attempt: int, writer: MetricsWriter | None) -> int | None:
    """The run's newest undamaged checkpoint; newer ones are renamed, and the reason is logged.

    Raises:
        ConfigFailure: there are checkpoints and all are damaged: the run would silently start from scratch.
    """
    damaged: list[tuple[int, str]] = []
    whole = None
    for step in reversed(_agreed(saved_steps(run.checkpoints))):
        folder = checkpoint_folder(run.checkpoints, step)
        refused = _agreed(_refusal(folder))
        if not refused and (changed := loading.changed_files(folder, folders.read_metadata(folder))):
            refused = _damage(folder, changed)
        if not refused:
            whole = step
            break
        damaged.append((step, refused))
    if damaged and whole is None:
        steps = [step for step, _ in damaged]
        raise ConfigFailure(
            f"all checkpoints of this run are damaged (steps {steps}; {damaged[0][1]}): delete them to restart"
        )
    if dist.get_rank() == 0:
        for step, refused in damaged:
            aside = folders.set_aside(checkpoint_folder(run.checkpoints, step), f"damaged-{attempt}")
            _say(writer, "checkpoint_passed_over", step, f"skipped: {refused}; renamed to {aside.name}")
    dist.barrier()
    return whole


def _agreed(mine: Any) -> Any:
    """What rank 0 found, on every rank: over a network they might not see the same files at once."""
    box = [mine]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _refusal(folder: Path) -> str:
    """Why a checkpoint is damaged, checked by its colosseum.json and the sizes of its files."""
    try:
        folders.read_metadata(folder)
    except RefusedInput as refused:
        return str(refused)
    return ""


def _damage(folder: Path, changed: list[str]) -> str:
    return f"{folder} is damaged: {', '.join(changed[:3])} changed since it was written"


def _same_run(
    run: RunDir, recipe: Recipe, folder: Path, metadata: CheckpointMetadata, writer: MetricsWriter | None
) -> None:
    """A checkpoint in the run's own folder is the run's: by its name, or at least by its recipe (a folder moved).

    Raises:
        ConfigFailure: it is another run's, of another recipe.
    """
    if metadata.run_id == run.root.name:
        return
    whose = f"{folder} is of run {one_line(metadata.run_id, 200)}"
    if metadata.recipe_hash != recipe_hash(recipe):
        raise ConfigFailure(
            f"{whose}, of another recipe: start from it with --from, or move it out of this run's folder"
        )
    _say(writer, "checkpoint_of_another_run", metadata.step, f"{whose}, of the same recipe: used as this run's own")
