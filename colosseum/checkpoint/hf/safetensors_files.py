"""Writes safetensors files tensor by tensor: shapes are known in advance, so the header is written first.

The safetensors library needs all tensors of a file in memory. Format: 8 bytes of length, a JSON header, then the data
(https://huggingface.co/docs/safetensors/index#format).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from colosseum.checkpoint.hf.source import INDEX, SINGLE
from colosseum.checkpoint.partial import Partial

NAMES = {"bf16": "BF16", "fp32": "F32"}
BYTES = {"bf16": 2, "fp32": 4}
SHARD_BYTES = 5_000_000_000
"""transformers' own limit."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file: tensors by name, in the order in which they are written."""

    file: str
    shapes: dict[str, tuple[int, ...]]


def shards_of(shapes: Sequence[tuple[str, tuple[int, ...]]], dtype: str, limit: int = SHARD_BYTES) -> list[Shard]:
    """Tensors in files of at most ``limit`` bytes, except where a single one is larger; named as transformers does."""
    groups: list[dict[str, tuple[int, ...]]] = [{}]
    size = 0
    for name, shape in shapes:
        more = prod(shape) * BYTES[dtype]
        if groups[-1] and size + more > limit:
            groups.append({})
            size = 0
        groups[-1][name] = shape
        size += more
    if len(groups) == 1:
        return [Shard(SINGLE, groups[0])]
    return [Shard(f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors", g) for i, g in enumerate(groups)]


def write_shards(part: Partial, shards: Sequence[Shard], dtype: str, tensors: Iterator[tuple[str, Any]]) -> None:
    """Writes files and notes them; ``tensors`` come in the order of the shards, in the right dtype."""
    import torch

    for shard in shards:
        with (part.folder / shard.file).open("wb") as file:
            file.write(_header(shard, dtype))
            for wanted in shard.shapes:
                name, tensor = next(tensors)
                assert name == wanted and tuple(tensor.shape) == shard.shapes[name], name
                file.write(tensor.contiguous().view(torch.uint8).numpy().data)
        part.note(shard.file, {})


def write_shard_index(folder: Path, shards: Sequence[Shard], dtype: str) -> None:
    """Writes which tensor is in which file, if there are several."""
    if len(shards) > 1:
        total = sum(prod(shape) for s in shards for shape in s.shapes.values()) * BYTES[dtype]
        index = {
            "metadata": {"total_size": total},
            "weight_map": {name: shard.file for shard in shards for name in shard.shapes},
        }
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _header(shard: Shard, dtype: str) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shard.shapes.items():
        end = at + prod(shape) * BYTES[dtype]
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
