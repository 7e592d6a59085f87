"""Conversion in a gate: another engine wrote the checkpoint that the next stage starts from."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from colosseum.atomic import write_whole
from colosseum.checkpoint.folders import is_committed
from colosseum.engines.registry import engine_of
from colosseum.errors import Fault
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, checkpoint_folder

WEIGHTS = ("weights",)


def importer(writer: str, reader: str) -> str | None:
    """What ``colosseum checkpoint import`` calls checkpoints of ``writer``; None = ``reader`` cannot have them so."""
    return engine_of(writer).imported_as if writer != reader and engine_of(reader).has_metadata else None


def faults(recipe: Recipe) -> list[Fault]:
    """Why a stage cannot start from a converted checkpoint, which holds weights only."""
    load = recipe.checkpoint.load
    if load == WEIGHTS:
        return []
    rule = "a checkpoint that is converted from another engine holds weights only"
    return [Fault(path="checkpoint.load", value=list(load), rule=rule, nearest=(list(WEIGHTS),))]


def sentence(writer: str, kind: str) -> str:
    return f"converted from engine {writer}'s checkpoint (weights only), as `colosseum checkpoint import {kind}` does"


def converted_folder(run: RunDir) -> Path:
    """The checkpoint that ``convert_into`` writes."""
    return checkpoint_folder(run.converted / "checkpoints", 0)


def convert_into(run: RunDir, source: Path, kind: str, writer: Recipe) -> Path:
    """Writes the converted checkpoint into ``run.converted`` unless an earlier call has; an interrupted one continues.

    Args:
        source: the other engine's checkpoint.
        kind: as ``importer`` names it.
        writer: the recipe that it was trained with, which says which model it is of.

    Raises:
        RefusedInput: it does not hold the writer's model.
        EnvironmentFault: there is not enough space on the disk.
    """
    from colosseum.checkpoint.megatron import import_megatron
    from colosseum.checkpoint.nemo import import_nemo

    folder, mark, identity = converted_folder(run), run.converted / "source", _identity(source)
    if run.converted.exists() and (not mark.exists() or mark.read_text() != identity):
        shutil.rmtree(run.converted)  # of another checkpoint: the stage before was run again
    if is_committed(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_whole(mark, identity.encode())
    if kind == "megatron":
        import_megatron(source, folder, model=writer.model)
    else:
        import_nemo(source, folder, lambda _text, _where: writer.model.model_dump())
    return folder


def _identity(source: Path) -> str:
    """Hash of a checkpoint's files by path, size and time."""
    paths = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    rows = [f"{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}\n" for path in paths]
    return hashlib.sha256("".join(rows).encode()).hexdigest()
