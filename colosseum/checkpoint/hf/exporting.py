"""Exports a checkpoint as a Hugging Face folder. One tensor is in memory at a time; a complete folder or none.

After an interruption the same call continues with the files that are missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import torch

from colosseum.atomic import to_disk
from colosseum.checkpoint import folders
from colosseum.checkpoint.adapters import MergedTensors
from colosseum.checkpoint.hf import card, text_files
from colosseum.checkpoint.hf.config import family_of, write_config
from colosseum.checkpoint.hf.mapping import Part, parts
from colosseum.checkpoint.hf.origin import origin_of
from colosseum.checkpoint.hf.safetensors_files import BYTES, SHARD_BYTES, shards_of, write_shard_index, write_shards
from colosseum.checkpoint.hf.tensors import parted
from colosseum.checkpoint.partial import folder_continued, key_of
from colosseum.checkpoint.torchdist import Tensors, read_index
from colosseum.checkpoint.writing import DTYPES, Progress, make_room, refuse_existing
from colosseum.errors import RefusedInput
from colosseum.recipe.schema import Model
from colosseum.rundir import CHECKPOINT_MARK


def export_hf(
    checkpoint: Path,
    out: Path,
    *,
    dtype: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> list[str]:
    """Writes the folder ``out``.

    Args:
        dtype: bf16 or fp32; None = the dtype of the checkpoint's weights.

    Returns:
        Notes for the user: what the folder lacks.

    Raises:
        RefusedInput: the checkpoint is unfinished or damaged, no architecture matches its model, or ``out`` exists.
        EnvironmentFault: there is not enough space on the disk.
    """
    refuse_existing(out)
    metadata = folders.read_metadata(checkpoint)
    origin = origin_of(checkpoint, metadata)
    family = family_of(origin.model, origin.architecture)
    ours = list(parts(family, origin.model))
    tensors = MergedTensors(Tensors(read_index(checkpoint)), metadata.lora)
    _check(tensors, ours, checkpoint)
    dtype = dtype or metadata.dtype
    folders.check_sums(checkpoint, metadata)
    chat = text_files.Chat.of(origin)
    shards = shards_of([pair for p in ours for pair in zip(p.names, p.shapes, strict=True)], dtype, shard_bytes)
    size = sum(prod(shape) for s in shards for shape in s.shapes.values()) * BYTES[dtype]
    make_room(out, size)
    identity = key_of("export hf", dtype, shard_bytes, (checkpoint / CHECKPOINT_MARK).read_text())
    with folder_continued(out, identity) as part:
        temporary = part.folder
        missing = [shard for shard in shards if part.done(shard.file) is None]
        wanted = {name for shard in missing for name in shard.shapes}
        held = size - sum(prod(shape) for s in missing for shape in s.shapes.values()) * BYTES[dtype]
        weights = _weights(
            tensors, ours, wanted, origin.model, DTYPES[dtype], lambda done: progress and progress(held + done, size)
        )
        write_shards(part, missing, dtype, weights)
        write_shard_index(temporary, shards, dtype)
        config = write_config(
            family,
            origin.model,
            seq_length=metadata.model.seq_length,
            dtype=dtype,
            bos=chat.bos,
            eos=list(chat.eos),
        )
        (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        text_files.write(temporary, origin, chat)
        text = card.text(origin, metadata, family, dtype, chat)
        (temporary / "README.md").write_text(text, encoding="utf-8")
        for path in temporary.iterdir():
            to_disk(path)
    return list(chat.notes)


def _check(tensors: MergedTensors, ours: list[Part], checkpoint: Path) -> None:
    missing = [p for p in ours if not tensors.has(p.key, p.layer)]
    if missing:
        first = missing[0]
        layer = "" if first.layer is None else f" of layer {first.layer}"
        raise RefusedInput(f"{checkpoint} has no tensor {first.key}{layer} ({len(missing):,} tensors are missing)")


def _weights(
    tensors: MergedTensors,
    ours: list[Part],
    wanted: set[str],
    model: Model,
    dtype: torch.dtype,
    done: Callable[[int], Any],
) -> Iterator[tuple[str, torch.Tensor]]:
    """The wanted tensors, in order."""
    written = 0
    for part in ours:
        if wanted.isdisjoint(part.names):
            continue
        tensor = tensors.get(part.key, part.layer).to(dtype)
        for name, found in zip(part.names, parted(part, tensor, model), strict=True):
            if name in wanted:
                written += found.nbytes
                yield name, found
        done(written)
