"""Depth growth: makes a checkpoint with more layers from one with fewer layers, tensor by tensor.

Each file of the new checkpoint is a copy of the old one, followed by the new layers' pieces; ``.metadata`` then has the
new layer numbers. Growing needs one pass over the bytes and the memory of a few chunks.

With ``identity`` a new layer is a copy of the one before it whose two projections back into the residual stream are
zero: ``x + 0 + 0 = x``, so the model's output does not change (as in Net2Net, arXiv:1511.05641).
"""

from __future__ import annotations

import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from colosseum.checkpoint import folders
from colosseum.checkpoint.growth import Growth
from colosseum.checkpoint.hf.description import copy_description, is_description, known_origin
from colosseum.checkpoint.metadata import CheckpointMetadata, ModelShape, Origin
from colosseum.checkpoint.pieces import Work, finished_file, progress_file
from colosseum.checkpoint.torchdist import METADATA, NUMBERED, Index, Item, layer_of, layers_in, read_index, write_index
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.recipe.schema import Model
from colosseum.rundir import CHECKPOINT_MARK, checkpoint_folder
from colosseum.units import format_bytes

WORKERS = 4


def expand(source: Path, out: Path, plan: Growth, *, workers: int = WORKERS) -> Path:
    """Writes the grown checkpoint as ``out/checkpoints/iter_N`` and returns this folder.

    Every byte of the source is read and compared with its checksum. A call after an interruption
    continues with the missing files. Until the end the folder has no colosseum.json, so it counts as unfinished.

    Raises:
        RefusedInput: the source is damaged or unfinished, or ``out`` has a complete checkpoint of this step.
        EnvironmentFault: there is not enough space on the disk.
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
        raise RefusedInput(f"{folder} is already a complete checkpoint: choose another OUT, or delete it")
    _refuse_without_room(out, metadata, folder)
    folders.check_sums(source, metadata, folders.checksums(source, filter(is_description, metadata.files)))
    made_here = [path for path in (folder, checkpoints, out) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    origin = origin_of(source, metadata, plan)
    work = Work(source, folder, index, plan, key=hashlib.sha256(origin.model_dump_json().encode()).hexdigest())
    names = [name for name in metadata.files if name != METADATA and not is_description(name)]
    with ThreadPoolExecutor(workers) as pool:
        jobs = {name: pool.submit(finished_file, work, name, metadata.files[name]) for name in names}
        try:
            parts = {name: job.result() for name, job in jobs.items()}
        except BaseException as error:
            pool.shutdown(cancel_futures=True)
            if isinstance(error, RefusedInput) and made_here:  # a damaged source: nothing to continue from
                shutil.rmtree(made_here[-1])
            raise
    items = tuple(item for part in parts.values() for item in part.items)
    write_index(folder, Index(folder, items, *_tensors(index, items, plan), None))
    described = [METADATA]
    if (known := known_origin(source, metadata)) is not None:
        described += copy_description(known, known.model.model_copy(update={"num_layers": len(plan.order)}), folder)
    files = {name: part.sum for name, part in parts.items()} | folders.checksums(folder, described)
    shape = metadata.model.model_copy(update={"num_layers": len(plan.order)})
    keeps = metadata.has_optimizer and plan.moments != "drop"
    update = {"files": files, "model": shape, "has_optimizer": keeps, "origin": origin}
    folders.commit(checkpoints, metadata.step, metadata.model_copy(update=update))
    for name in names:
        progress_file(folder, name).unlink(missing_ok=True)
    return folder


def _check(source: Path, metadata: CheckpointMetadata, index: Index, plan: Growth) -> None:
    held, recorded = layers_in(index), metadata.model.num_layers
    if held != recorded or 1 + max(old for old, _ in plan.order) != recorded:
        raise RefusedInput(f"{source} has {held} layers, but its {CHECKPOINT_MARK} says {recorded}")
    if getattr(index.raw, "mcore_data", None):
        raise RefusedInput(f"{source} has flattened optimizer tensors (the format of megatron-core before 0.14)")


def _refuse_without_room(out: Path, metadata: CheckpointMetadata, folder: Path) -> None:
    place = next(parent for parent in (out.absolute(), *out.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    there = sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0
    if (need := sum(file.bytes for file in metadata.files.values()) - there) > free:
        raise EnvironmentFault(f"{place} has {format_bytes(free)} free, but the checkpoint needs {format_bytes(need)}")


def origin_of(source: Path, metadata: CheckpointMetadata, plan: Growth) -> Origin:
    """The origin that a grown checkpoint records."""
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
    """The recorded model of a checkpoint; None if it has no RoPE or an older release wrote it, which recorded less."""
    if shape.rope_base is None:
        return None
    known = shape.model_dump(exclude={"seq_length", "positions"}, exclude_none=True)
    return Model(**known)
