"""Depth growth: a checkpoint of a model with more layers, made from one of fewer, tensor by tensor.

A file of the new checkpoint is the file of the old one, copied, with the new layers' pieces behind it; ``.metadata``
then counts the layers anew. So growing costs one pass over the bytes and the memory of a few chunks.

With ``identity`` a new layer is a copy of the one before it whose two projections back into the residual stream are
zero: ``x + 0 + 0 = x``, the model computes what it did (as in Net2Net, arXiv:1511.05641).
"""

from __future__ import annotations

import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from colosseum.checkpoint import folders
from colosseum.checkpoint.growth import Growth
from colosseum.checkpoint.metadata import CheckpointMetadata, ModelShape, Origin
from colosseum.checkpoint.pieces import Work, finished_file, note_of
from colosseum.checkpoint.torchdist import METADATA, NUMBERED, Index, Item, layer_of, layers_in, read_index, write_index
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.recipe.schema import Model
from colosseum.rundir import CHECKPOINT_MARK, checkpoint_folder
from colosseum.units import format_bytes

WORKERS = 4


def expand(source: Path, out: Path, plan: Growth, *, workers: int = WORKERS) -> Path:
    """Writes the grown checkpoint as ``out/checkpoints/iter_N``; the folder.

    Every byte of the source is read and compared with its checksum. A call that was interrupted is taken up where it
    stood; until the end the folder has no colosseum.json, so nobody takes it for a checkpoint.

    Raises:
        RefusedInput: the source is damaged or not finished, or ``out`` holds another checkpoint of this step.
        EnvironmentFault: the disk has not enough room.
    """
    metadata = folders.read_metadata(source)
    if metadata.lora is not None:
        raise RefusedInput(f"{source} has LoRA adapters: merge them first (checkpoint export hf, then import hf)")
    if folders.checksums(source, [METADATA])[METADATA] != metadata.files.get(METADATA):
        raise RefusedInput(f"{source} is damaged: {METADATA} changed since it was written")
    index = read_index(source)
    _check(source, metadata, index, plan)
    checkpoints = out / "checkpoints"
    folder = checkpoint_folder(checkpoints, metadata.step)
    if (folder / CHECKPOINT_MARK).exists():
        raise RefusedInput(f"{folder} is a finished checkpoint already: give another OUT, or delete it")
    _refuse_without_room(out, metadata, folder)
    folder.mkdir(parents=True, exist_ok=True)
    origin = origin_of(source, metadata, plan)
    work = Work(source, folder, index, plan, key=hashlib.sha256(origin.model_dump_json().encode()).hexdigest())
    names = [name for name in metadata.files if name != METADATA]
    with ThreadPoolExecutor(workers) as pool:
        jobs = {name: pool.submit(finished_file, work, name, metadata.files[name]) for name in names}
        try:
            parts = {name: job.result() for name, job in jobs.items()}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    items = tuple(item for part in parts.values() for item in part.items)
    write_index(folder, Index(folder, items, *_tensors(index, items, plan), None))
    files = {name: part.sum for name, part in parts.items()} | folders.checksums(folder, [METADATA])
    shape = metadata.model.model_copy(update={"num_layers": len(plan.order)})
    keeps = metadata.has_optimizer and plan.moments != "drop"
    update = {"files": files, "model": shape, "has_optimizer": keeps, "origin": origin}
    folders.commit(checkpoints, metadata.step, metadata.model_copy(update=update))
    for name in names:
        note_of(folder, name).unlink(missing_ok=True)
    return folder


def _check(source: Path, metadata: CheckpointMetadata, index: Index, plan: Growth) -> None:
    held, recorded = layers_in(index), metadata.model.num_layers
    if held != recorded or 1 + max(old for old, _ in plan.order) != recorded:
        raise RefusedInput(f"{source} holds {held} layers and its {CHECKPOINT_MARK} says {recorded}")
    if getattr(index.raw, "mcore_data", None):
        raise RefusedInput(f"{source} holds flattened optimizer tensors (a format of megatron-core before 0.14)")


def _refuse_without_room(out: Path, metadata: CheckpointMetadata, folder: Path) -> None:
    place = next(parent for parent in (out.absolute(), *out.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    there = sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0
    if (need := sum(file.bytes for file in metadata.files.values()) - there) > free:
        raise EnvironmentFault(f"{place} has {format_bytes(free)} free and the checkpoint needs {format_bytes(need)}")


def origin_of(source: Path, metadata: CheckpointMetadata, plan: Growth) -> Origin:
    """What a grown checkpoint says of where it comes from."""
    digest = hashlib.sha256((source / CHECKPOINT_MARK).read_bytes()).hexdigest()
    layers: dict[str, Any] = {
        "layers": [metadata.model.num_layers, len(plan.order)],
        "new_layers": [layer + 1 for layer in plan.new_layers],
        "init": plan.init,
        "optimizer": plan.moments,
    }
    return Origin(command="expand", source=f"{metadata.run_id}@{metadata.step}", source_hash=digest, settings=layers)


def _tensors(index: Index, items: tuple[Item, ...], plan: Growth) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Shapes and dtypes of the new checkpoint's tensors."""
    shapes, dtypes = {}, {}
    for item in items:
        if item.offsets is None:
            continue
        numbered, layer = NUMBERED.match(item.key), layer_of(item)
        old = item.key
        if numbered:
            old = f"{numbered['head']}{plan.order[int(numbered['layer'])][0]}.{numbered['rest']}"
        shape, dtypes[item.key] = index.shapes[old], index.dtypes[old]
        shapes[item.key] = shape if numbered or layer is None else (len(plan.order), *shape[1:])
    return shapes, dtypes


def model_of(shape: ModelShape) -> Model | None:
    """The model of a checkpoint by what it records; None if it has no RoPE or is of a release that recorded less."""
    if shape.rope_base is None:
        return None
    known = shape.model_dump(exclude={"seq_length", "positions"})
    return Model(**known)
