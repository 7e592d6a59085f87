"""One file of a grown checkpoint: the old file's pieces, then those of the new layers.

A complete file has a note beside it (``NAME.done.json``), so that a call after an interruption does not rewrite it.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from colosseum.atomic import to_disk, write_whole
from colosseum.checkpoint import folders
from colosseum.checkpoint.growth import Growth
from colosseum.checkpoint.metadata import FileSum
from colosseum.checkpoint.torchdist import NUMBERED, OPTIMIZER, SHARD, Index, Item, layer_of, saved
from colosseum.checkpoint.unpickle import load_torch
from colosseum.errors import RefusedInput

COMMON = "common.pt"
INTO_RESIDUAL = re.compile(r"\.(?:self_attention\.linear_proj|mlp\.linear_fc2)\.(?:weight|bias)$")
BLOCK = 1 << 23
STD = 0.02
"""For random weights; divided by sqrt(2 layers) in output projections, as in Megatron's initialisation."""


@dataclass(frozen=True, slots=True)
class Work:
    """Source, target and plan of an expansion."""

    source: Path
    folder: Path
    index: Index
    plan: Growth
    key: str
    """Hash of source and plan; notes with another key are ignored."""


@dataclass(frozen=True, slots=True)
class Part:
    """A complete file of the new checkpoint."""

    sum: FileSum
    items: tuple[Item, ...]


class _Summed:
    """A file whose checksum is computed while it is written."""

    def __init__(self, file: Any) -> None:
        import xxhash

        self._file, self._digest, self.size = file, xxhash.xxh3_64(), 0

    def write(self, data: Any) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    @property
    def sum(self) -> FileSum:
        return FileSum(bytes=self.size, xxh3=self._digest.hexdigest())


def progress_file(folder: Path, name: str) -> Path:
    """The note that a file is complete."""
    return folder / f"{name}.done.json"


def finished_file(work: Work, name: str, expected: FileSum) -> Part:
    """Writes a file of the new checkpoint, unless an earlier call has.

    Raises:
        RefusedInput: the source file has changed since it was written.
    """
    note, target = progress_file(work.folder, name), work.folder / name
    if (done := _noted(note, target, work.key)) is not None:
        return done
    note.unlink(missing_ok=True)
    items = sorted((item for item in work.index.items if item.file == name), key=lambda item: item.start)
    with target.open("wb") as file:
        out = _Summed(file)
        if name == COMMON and work.plan.moments == "zero":
            _compare(work.source, name, expected, folders.checksums(work.source, [name])[name])
            out.write(saved(_recounted(load_torch(work.source / name))))
            written: list[Item] = []
        else:
            written = _copy(work, name, expected, items, out)
        written += _added(work, items, out)
    to_disk(target)
    rows = [[i.key, i.offsets, i.sizes, i.file, i.start, i.length] for i in written]
    write_whole(note, json.dumps({"key": work.key, "sum": out.sum.model_dump(), "items": rows}).encode())
    return Part(out.sum, tuple(written))


def _noted(note: Path, target: Path, key: str) -> Part | None:
    try:
        data = json.loads(note.read_bytes())
        if data["key"] != key or target.stat().st_size != data["sum"]["bytes"]:
            return None
    except (OSError, ValueError, KeyError):
        return None
    items = [
        Item(name, o if o is None else tuple(o), s if s is None else tuple(s), file, start, length)
        for name, o, s, file, start, length in data["items"]
    ]
    return Part(FileSum(**data["sum"]), tuple(items))


def _recounted(common: Any) -> Any:
    """common.pt with the optimizer's step counter reset: zero moments need Adam's bias correction from step 1."""
    optimizer = common.get("optimizer", {})
    chained = [value for name, value in optimizer.items() if isinstance(name, int)]
    for part in chained or [optimizer]:
        for group in part.get("optimizer", {}).get("param_groups", []):
            if "step" in group:
                group["step"] = type(group["step"])(0)
    return common


# --- existing layers ---------------------------------------------------------------------------------------------


def _copy(work: Work, name: str, expected: FileSum, items: list[Item], out: _Summed) -> list[Item]:
    """Reads a whole file, writes the pieces of existing layers, and verifies the file's checksum."""
    import xxhash

    stay = [item for item in items if not _left_out(item, work.plan) and not _zeroed(item, work.plan)]
    spans = _spans(stay) if items else [(0, expected.bytes)]
    digest, at, span = xxhash.xxh3_64(), 0, 0
    buffer = memoryview(bytearray(BLOCK))
    with (work.source / name).open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
            while span < len(spans) and spans[span][0] < at + size:
                begin, end = spans[span]
                out.write(buffer[max(begin - at, 0) : min(end - at, size)])
                if end > at + size:
                    break
                span += 1
            at += size
    _compare(work.source, name, expected, FileSum(bytes=at, xxh3=digest.hexdigest()))
    written, start = [], 0
    for item in stay:
        written.append(replace(_moved(item, work.plan), start=start))
        start += item.length
    return written


def _compare(source: Path, name: str, expected: FileSum, found: FileSum) -> None:
    if found != expected:
        raise RefusedInput(f"{source} is damaged: {name} changed since it was written")


def _spans(items: Iterable[Item]) -> list[tuple[int, int]]:
    """Byte ranges of items in order; adjacent ones are joined."""
    spans: list[tuple[int, int]] = []
    for item in items:
        end = item.start + item.length
        if spans and spans[-1][1] == item.start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((item.start, end))
    return spans


def _is_moment(item: Item) -> bool:
    found = OPTIMIZER.match(item.key)
    return bool(found and found["kind"].startswith("exp_avg"))


def _left_out(item: Item, plan: Growth) -> bool:
    return plan.moments == "drop" and item.key.startswith(("optimizer.", "chained_"))


def _zeroed(item: Item, plan: Growth) -> bool:
    """Whether an existing layer has zeros here."""
    return plan.moments == "zero" and _is_moment(item)


def _moved(item: Item, plan: Growth, new: int | None = None) -> Item:
    """An item under its layer's new number, or under that of layer ``new``."""
    layer = layer_of(item)
    if layer is None:
        return item
    number = plan.place_of(layer) if new is None else new
    if numbered := NUMBERED.match(item.key):
        return replace(item, key=f"{numbered['head']}{number}.{numbered['rest']}")
    if item.offsets is not None:
        return replace(item, offsets=(number, *item.offsets[1:]))
    shard = SHARD.match(item.key)
    assert shard
    return replace(item, key=f"{shard['head']}{number}_{len(plan.order)}")


# --- new layers -------------------------------------------------------------------------------------------------


def _added(work: Work, items: list[Item], out: _Summed) -> list[Item]:
    """Writes reset moments, and the new layers' pieces made from those of this file."""
    plan, written = work.plan, []
    for item in items:
        if _left_out(item, plan):
            continue
        if _zeroed(item, plan):
            start = out.size
            _write_zeros(item, work.index, out)
            written.append(replace(_moved(item, plan), start=start, length=out.size - start))
        layer = layer_of(item)
        for new in [] if layer is None else plan.new_after(layer):
            start = out.size
            _write_new(work, item, new, out)
            written.append(replace(_moved(item, plan, new), start=start, length=out.size - start))
    return written


def _write_new(work: Work, item: Item, new: int, out: _Summed) -> None:
    """The value of layer ``new`` that corresponds to ``item`` of its old layer."""
    found = OPTIMIZER.match(item.key)
    name = found["name"] if found else item.key
    if item.offsets is not None and (_is_moment(item) or (work.plan.init == "identity" and INTO_RESIDUAL.search(name))):
        _write_zeros(item, work.index, out)
    elif item.offsets is not None and work.plan.init == "random" and "norm" not in name:
        out.write(saved(_drawn(item, name, work.index, new, len(work.plan.order))))
    else:
        with (work.source / item.file).open("rb", buffering=0) as file:
            file.seek(item.start)
            left = item.length
            while left and (block := file.read(min(left, BLOCK))):
                out.write(block)
                left -= len(block)


def _write_zeros(item: Item, index: Index, out: _Summed) -> None:
    import torch

    out.write(saved(torch.zeros(item.sizes, dtype=index.dtypes[item.key])))


def _drawn(item: Item, name: str, index: Index, new: int, layers: int) -> Any:
    """Random weights that depend only on the tensor's name and layer, not on the sharding or the dtype."""
    import torch

    assert item.offsets is not None and item.sizes is not None
    stacked = NUMBERED.match(item.key) is None
    shape, skip = index.shapes[item.key], 1 if stacked else 0
    numbered = NUMBERED.match(name)
    plain = numbered["head"] + numbered["rest"] if numbered else name
    seed = zlib.crc32(f"{plain} {new}".encode())
    generator = torch.Generator().manual_seed(seed)
    std = STD / (2 * layers) ** 0.5 if INTO_RESIDUAL.search(plain) else STD
    whole = (
        torch.zeros(shape[skip:]) if plain.endswith("bias") else torch.randn(shape[skip:], generator=generator) * std
    )
    place = tuple(slice(o, o + n) for o, n in zip(item.offsets[skip:], item.sizes[skip:], strict=True))
    return whole[place].to(index.dtypes[item.key]).reshape(item.sizes).contiguous()
