"""What a run reads besides its bundle: data, tokenizer, checkpoint. Paths are made absolute and must exist."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from colosseum.bundle import MAX_NODES_WRITTEN, RECIPE
from colosseum.data import parts
from colosseum.data.align.jsonl import count_rows
from colosseum.data.eod import eod_id
from colosseum.data.indexed import bin_path, idx_path, read_lengths
from colosseum.engines.registry import engine_of
from colosseum.errors import Fault, RefusedInput
from colosseum.home import expanded
from colosseum.launch import environment
from colosseum.launch.schedulers.scripts import scripts_of
from colosseum.reading import Unreadable, read_bytes
from colosseum.recipe import rules, site
from colosseum.recipe.base import DEFAULT_ENGINE, Count, EngineName
from colosseum.recipe.scan import scan
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import Fresh, FromPath, FromRun, FromStage, Source
from colosseum.rundir import RunDir


def with_absolute_paths(recipe: Recipe, base: Path) -> Recipe:
    """The recipe with relative paths of data, tokenizer and checkpoint read from ``base``: ranks run elsewhere."""
    data = recipe.as_data()

    def fix(section: dict[str, Any], key: str, within: str) -> None:
        if section[key] is not None:
            section[key] = os.path.normpath(base / expanded(section[key], f"{within}.{key}"))

    for i, entry in enumerate(data["data"]["blend"]):
        fix(entry, "path", f"data.blend.{i}")
    for key in ("train", "validation", "cache_dir"):
        fix(data["data"], key, "data")
    fix(data["tokenizer"], "path", "tokenizer")
    if isinstance(recipe.checkpoint.source, FromPath):
        fix(data["checkpoint"], "from", "checkpoint")
    if isinstance(_reference(recipe), FromPath):
        fix(data["task"], "reference_from", "task")
    site.anchor(data["cluster"], base)
    fix(data["cluster"]["paths"], "data", "cluster.paths")
    return Recipe.from_data(data)


def with_row_counts(recipe: Recipe) -> Recipe:
    """A recipe of ``train.epochs`` with the rows of its training file, where that is there: plan, job script and ranks
    count the same steps."""
    file = recipe.data.train
    if recipe.train.epochs is None or recipe.data.train_samples is not None or file is None or not Path(file).is_file():
        return recipe
    data = recipe.data.model_copy(update={"train_samples": count_rows(Path(file))})
    return recipe.model_copy(update={"data": data})


def _row_faults(recipe: Recipe) -> Iterator[Fault]:
    """Where the length is given in epochs: rows that are not those of the training file, and rules that they break."""
    file, stated = recipe.data.train, recipe.data.train_samples
    if recipe.train.epochs is None or stated is None or file is None or not Path(file).is_file():
        return
    if (rows := count_rows(Path(file))) != stated:
        rule = f"{file} has {rows:,} rows; remove the field to have them counted, or state them"
        yield Fault(path="data.train_samples", value=stated, rule=rule, nearest=(rows,))
    else:
        yield from rules.faults(recipe)  # of the steps that these rows make


def missing(recipe: Recipe, runs: Path) -> list[Fault]:
    """Every input that is not there, and every symbolic one; ``runs`` is where ``run:`` names are looked up."""
    found = [
        Fault(path=path, value=file, rule="does not exist") for path, file in _files(recipe) if not Path(file).exists()
    ]
    if recipe.alignment is None and not recipe.data.blend:
        found.append(Fault(path="data.blend", value=[], rule="names no data; a launch needs data"))
    found += [*_blend_faults(recipe), *_row_faults(recipe), *_site_faults(recipe, runs), *tokenizer_faults(recipe)]
    return found + _checkpoint_faults(recipe, runs) + _reference_faults(recipe, runs)


def _blend_faults(recipe: Recipe) -> list[Fault]:
    """Sources that are not datasets, or have a too small training or validation part; not missing files."""
    wanted: tuple[parts.Part, ...] = ("train", "valid") if recipe.train.val_steps else ("train",)
    found: list[Fault] = []
    for i, entry in enumerate(recipe.data.blend):
        prefix = Path(entry.path)
        if not (idx_path(prefix).exists() and bin_path(prefix).exists()):
            continue
        try:
            lengths = read_lengths(prefix)
        except RefusedInput as refused:
            found.append(Fault(path=f"data.blend.{i}.path", value=entry.path, rule=str(refused)))
            continue
        for part in wanted:
            if reason := parts.shortage(entry.path, lengths, recipe.data.split, part, recipe.batch.seq_length):
                found.append(Fault(path=f"data.blend.{i}.path", value=entry.path, rule=reason))
    return found


def _is_visible(value: str) -> bool:
    """Whether the parent folder of a cluster path exists on this machine, so that the path can be checked here."""
    return Path(value).parent.is_dir()


def site_warnings(recipe: Recipe) -> list[str]:
    """Paths that only the compute nodes may have."""
    hidden = [path for path in scripts_of(recipe).paths(recipe) if not _is_visible(path.value)]
    return [f"{path.field} = {path.value}: cannot be checked from this machine" for path in hidden]


def _site_faults(recipe: Recipe, runs: Path) -> list[Fault]:
    """Faults in the site's own paths that a job would otherwise find only after waiting in the queue."""
    scripts = scripts_of(recipe)
    absent = [path for path in scripts.paths(recipe) if _is_visible(path.value) and not path.file.exists()]
    found = [Fault(path=path.field, value=path.value, rule=path.rule) for path in absent]
    return found + environment.unset(recipe) + scripts.runs_faults(recipe, runs)


def tokenizer_faults(recipe: Recipe) -> list[Fault]:
    """Where its file can be seen from here: what ends documents is no special token, or the model has too few rows."""
    tokenizer = recipe.tokenizer
    if tokenizer.kind == "null" or tokenizer.path is None or not Path(tokenizer.path).is_file():
        return []
    try:
        size, _ = eod_id(tokenizer.kind, Path(tokenizer.path), tokenizer.eod)
    except RefusedInput as refused:
        return list(refused.faults)
    if size <= recipe.model.vocab_size:
        return []
    rule = f"must be at least {size}, the tokens of {tokenizer.path}"
    return [Fault(path="model.vocab_size", value=recipe.model.vocab_size, rule=rule, nearest=(size,))]


def _files(recipe: Recipe) -> Iterator[tuple[str, str]]:
    for i, entry in enumerate(recipe.data.blend):
        for suffix in (".bin", ".idx"):
            yield f"data.blend.{i}.path", entry.path + suffix
    for key in ("train", "validation"):
        if (file := getattr(recipe.data, key)) is not None:
            yield f"data.{key}", file
    if recipe.tokenizer.path is not None:
        yield "tokenizer.path", recipe.tokenizer.path


def _reference(recipe: Recipe) -> FromPath | FromRun | None:
    """A reference policy other than the weights of the start."""
    return getattr(recipe.task, "reference_from", None)


def no_conversion(writer: str, reader: str) -> str | None:
    """Why an engine cannot start from another engine's checkpoint; None = it is its own."""
    if writer == reader:
        return None
    kind = engine_of(writer).imported_as
    if kind is not None and engine_of(reader).has_metadata:
        how = f"convert it with `colosseum checkpoint import {kind}` and give its path"
    else:
        how = f"no conversion from {writer} to {reader} is part of this package: convert it and give its path"
    return f"engine {reader} does not read engine {writer}'s checkpoints; {how} (docs/guides/engines.md)"


def _checkpoint_faults(recipe: Recipe, runs: Path) -> list[Fault]:
    source = recipe.checkpoint.source
    if source == Fresh():
        return []
    if rule := _unusable(source, recipe.engine, runs):
        return [Fault(path="checkpoint.from", value=str(source), rule=rule)]
    return engine_of(recipe.engine).source_faults(recipe, runs)


def _reference_faults(recipe: Recipe, runs: Path) -> list[Fault]:
    reference = _reference(recipe)
    rule = None if reference is None else _unusable(reference, recipe.engine, runs)
    return [Fault(path="task.reference_from", value=str(reference), rule=rule)] if rule else []


def _unusable(source: Source, engine: str, runs: Path) -> str | None:
    """Why a run cannot take weights from here; None = there are some."""
    match source:
        case FromRun(name, step):
            run = RunDir(runs / name)
            if not run.root.is_dir():
                return f"no such run in {runs}"
            return no_conversion(_engine_of(run), engine) or (None if _has_step(run, step) else _no_step(run, step))
        case FromPath(path):
            return None if Path(path).exists() else "does not exist"
        case FromStage():
            return (
                "only a campaign sets a stage; otherwise use --from RUN, checkpoint.from=PATH or checkpoint.from=none"
            )
        case Fresh():
            return None


class _WrittenBatch(BaseModel):
    gbs: Count


class _WrittenRecipe(BaseModel):
    """The needed fields of another run's recipe, which another release may have written."""

    engine: EngineName
    batch: _WrittenBatch


def _engine_of(run: RunDir) -> str:
    """The engine that wrote a checkpoint; mcore where there is no bundle."""
    recipe = _recipe_of(run)
    return DEFAULT_ENGINE if recipe is None else recipe.engine


def _recipe_of(run: RunDir) -> _WrittenRecipe | None:
    """None = the folder has no bundle.

    Raises:
        RefusedInput: its recipe.yaml cannot be read.
    """
    try:
        text = read_bytes(run.bundle / RECIPE).decode()
        return _WrittenRecipe.model_validate(scan(text, RECIPE, max_nodes=MAX_NODES_WRITTEN).data)
    except FileNotFoundError:
        return None
    except (Unreadable, ValueError, RefusedInput) as error:
        raise RefusedInput(f"{run.root}: bundle/{RECIPE} cannot be read: it is damaged or no recipe") from error


def _left_by(run: RunDir) -> dict[int, Path]:
    """Checkpoints of a run that another run can start from, by step."""
    recipe = _recipe_of(run)
    return engine_of(_engine_of(run)).checkpoints(run, 1 if recipe is None else recipe.batch.gbs)


def _has_step(run: RunDir, step: int | None) -> bool:
    left = _left_by(run)
    return bool(left) if step is None else step in left


def _no_step(run: RunDir, step: int | None) -> str:
    steps = list(_left_by(run))
    if not steps:
        return engine_of(_engine_of(run)).no_checkpoint(run)
    return f"run {run.root.name} has no checkpoint of step {step}; it has {', '.join(map(str, steps[-8:]))}"


def checkpoint_reference(run: RunDir, step: int | None, runs: Path) -> tuple[Source, int]:
    """``checkpoint.from`` of a run's checkpoint, and its step (None = newest): by name inside ``runs``, else by folder.

    Raises:
        RefusedInput: the run has no such checkpoint.
    """
    left = _left_by(run)
    if not _has_step(run, step):
        raise RefusedInput([Fault(path="--from", value=str(run.root), rule=_no_step(run, step), where="command line")])
    step = list(left)[-1] if step is None else step
    if run.root.resolve().parent == runs.resolve():
        return engine_of(_engine_of(run)).reference(run, step, left[step]), step
    return FromPath(str(left[step].resolve())), step
