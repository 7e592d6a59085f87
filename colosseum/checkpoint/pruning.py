"""Which checkpoints of a run may be deleted: by a policy, never the newest, nor one that another run starts from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from colosseum.bundle import MANIFEST, RECIPE
from colosseum.checkpoint import folders
from colosseum.errors import RefusedInput
from colosseum.reading import Unreadable, read_bytes, read_object
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import FromPath, FromRun
from colosseum.rundir import RunDir, checkpoint_folder, saved_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """What a policy makes of a run's finished checkpoints."""

    gone: list[int]
    """Steps, ascending."""
    kept: dict[int, str]
    """Steps that the policy would delete, and the run that starts from each."""
    bytes: int
    """Of ``gone``."""


def pruning(run: RunDir, keep_last: int, keep_every: int | None) -> Pruning:
    """What ``prune`` would delete: all but the last ``keep_last`` steps and those divisible by ``keep_every``.

    Raises:
        RefusedInput: another run's folder cannot be read, so that it is unknown what it starts from.
    """
    candidates = folders.beyond(run.checkpoints, keep_last, keep_every)
    needed = _needed(run) if candidates else {}
    gone = [step for step in candidates if step not in needed]
    sizes = (folders.read_metadata(checkpoint_folder(run.checkpoints, step)).files for step in gone)
    return Pruning(
        gone=gone,
        kept={step: needed[step] for step in candidates if step in needed},
        bytes=sum(file.bytes for files in sizes for file in files.values()),
    )


def prune(run: RunDir, found: Pruning) -> None:
    """Deletes what ``pruning`` named."""
    for step in found.gone:
        folders.delete(run.checkpoints, step)


def _needed(run: RunDir) -> dict[int, str]:
    """Steps of ``run`` that other runs in the same folder start from, and which run does."""
    found = _selected(run)
    for other in sorted(path for path in run.root.resolve().parent.iterdir() if (path / "bundle").is_dir()):
        if other.name != run.root.resolve().name:
            found |= dict.fromkeys(_steps(run, RunDir(other)), other.name)
    return found


def _selected(run: RunDir) -> dict[int, str]:
    """Steps of ``run`` that were promoted: in its own selection, or in that of a sweep."""
    found: dict[int, str] = {}
    for folder in (path.parent for path in run.root.resolve().parent.glob(f"*/{run.selected.name}")):
        try:
            row = read_object(RunDir(folder).selected)
        except (Unreadable, FileNotFoundError) as error:
            raise RefusedInput(f"{folder}: {error}: nobody knows which checkpoint was selected") from error
        if row.get("run") == run.root.resolve().name and isinstance(step := row.get("step"), int):
            found[step] = f"what takes {folder.name}@selected"
    return found


def _steps(run: RunDir, other: RunDir) -> Iterator[int]:
    """Steps of ``run`` that ``other`` names: as its parent, its first weights or its reference policy."""
    try:
        lineage = read_object(other.bundle / MANIFEST).get("lineage")
        recipe = Recipe.from_data(yaml.safe_load(read_bytes(other.bundle / RECIPE)))
    except (Unreadable, RefusedInput, FileNotFoundError, yaml.YAMLError) as error:
        rule = "cannot be read, so it may start from this run's checkpoints: repair or move it first"
        raise RefusedInput(f"{other.root} {rule}") from error
    if isinstance(lineage, dict) and lineage.get("run") == run.root.resolve().name:
        yield int(lineage["step"])
    sources = [recipe.checkpoint.source, getattr(recipe.task, "reference_from", None)]
    here = {checkpoint_folder(run.checkpoints, step).resolve(): step for step in saved_steps(run.checkpoints)}
    for source in sources:
        if isinstance(source, FromRun) and source.run == run.root.resolve().name and source.step is not None:
            yield source.step
        elif isinstance(source, FromPath) and (path := (other.root / source.path).resolve()) in here:
            yield here[path]
