"""The files of a torch_dist checkpoint as items: which bytes of which file contain which part of which tensor.

megatron-core stacks the layers of a model along a leading axis: ``decoder.layers.mlp.linear_fc1.weight`` is
``[layers, …]``, one chunk per layer and tensor-parallel rank, each chunk the bytes of one ``torch.save``. Other writers
number them (``decoder.layers.7.mlp.…``). Both are read here; only requested tensors are loaded.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colosseum.checkpoint.unpickle import DEFAULT, FOREIGN, load_pickle, load_torch
from colosseum.errors import INSTALL_TRAIN, EnvironmentFault, RefusedInput
from colosseum.reading import Unreadable, read_bytes

METADATA = ".metadata"
MAX_INDEX = 1 << 30
"""Bytes of it."""
NUMBERED = re.compile(r"^(?P<head>(?:.*\.)?decoder\.layers\.)(?P<layer>\d+)\.(?P<rest>.+)$")
STACKED = re.compile(r"^(?:.*\.)?decoder\.layers\.(?!\d+\.).+$")
SHARD = re.compile(r"^(?P<head>.+/shard_)(?P<layer>\d+)_(?P<count>\d+)$")
OPTIMIZER = re.compile(
    r"^(?:optimizer|chained_\d+\.optimizer)\b.*?\.state\.(?P<kind>exp_avg_sq|exp_avg|param)\.(?P<name>.+)$"
)


@dataclass(frozen=True, slots=True)
class Item:
    """One stored piece: a chunk of a tensor, or an object."""

    key: str
    offsets: tuple[int, ...] | None
    """Offsets of the chunk in the tensor; None = an object."""
    sizes: tuple[int, ...] | None
    file: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Index:
    """The content of a checkpoint's ``.metadata``."""

    folder: Path
    items: tuple[Item, ...]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, Any]
    """torch dtypes by tensor."""
    raw: Any
    """torch's own object."""


def read_index(folder: Path) -> Index:
    """Reads the index of a torch_dist folder, written by Colosseum or another program.

    Raises:
        RefusedInput: there is no ``.metadata``, it contains more than data, or it refers to files outside the folder.
        EnvironmentFault: torch is not installed.
    """
    try:
        return index_of(read_bytes(folder / METADATA, MAX_INDEX), folder)
    except Unreadable as error:
        raise RefusedInput(f"{folder}: {error}") from error
    except OSError as error:
        raise RefusedInput(f"{folder} is not a torch_dist checkpoint: it has no {METADATA}") from error


def index_of(content: bytes, folder: Path) -> Index:
    """As ``read_index``, of a ``.metadata`` that has been read."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise EnvironmentFault(f"reading a checkpoint's tensors needs torch; {INSTALL_TRAIN}") from error
    path = folder / METADATA
    raw = load_pickle(content, what=str(path), allow=DEFAULT | FOREIGN)
    try:
        return _index(raw, folder)
    except (AttributeError, TypeError, ValueError, KeyError, IndexError) as error:
        raise RefusedInput(f"{path} is damaged: it is no index of a torch_dist checkpoint") from error


def _index(raw: Any, folder: Path) -> Index:
    """Reads torch's object; one that was damaged may lack anything."""
    import torch

    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, Any] = {}
    sizes = {}
    for key, entry in raw.state_dict_metadata.items():
        if hasattr(entry, "chunks"):
            shapes[key], dtypes[key] = _whole(entry.size), entry.properties.dtype
            sizes.update({(key, _whole(chunk.offsets)): _whole(chunk.sizes) for chunk in entry.chunks})
    if not all(isinstance(key, str) for key in raw.state_dict_metadata) or not all(
        isinstance(dtype, torch.dtype) for dtype in dtypes.values()
    ):
        raise TypeError
    items = []
    for index, stored in raw.storage_data.items():
        if Path(stored.relative_path).name != stored.relative_path:
            raise RefusedInput(
                f"{folder / METADATA} refers to {stored.relative_path!r}, which is not a file in its folder: refused"
            )
        offsets = _whole(index.offset or ()) if index.fqn in shapes else None
        if offsets is not None and not offsets:
            offsets = (0,) * len(shapes[index.fqn])
        piece = sizes[index.fqn, offsets] if offsets is not None else None
        start, length = _whole((stored.offset, stored.length))
        items.append(Item(index.fqn, offsets, piece, stored.relative_path, start, length))
    return Index(folder, tuple(items), shapes, dtypes, raw)


def _whole(numbers: Any) -> tuple[int, ...]:
    found = tuple(int(number) for number in numbers)
    if min(found, default=0) < 0:
        raise ValueError
    return found


def write_index(folder: Path, index: Index) -> None:
    """Writes ``.metadata`` for items in ``folder`` (``index.raw`` is ignored)."""
    from torch import Size
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        StorageMeta,
        TensorProperties,
        TensorStorageMetadata,
    )

    entries: dict[str, Any] = {}
    stored = {}
    for item in index.items:
        place = _StorageInfo(item.file, item.start, item.length)
        if item.offsets is None or item.sizes is None:
            entries[item.key] = BytesStorageMetadata()
            stored[MetadataIndex(item.key)] = place
            continue
        if item.key not in entries:
            properties = TensorProperties(dtype=index.dtypes[item.key])
            entries[item.key] = TensorStorageMetadata(properties, Size(index.shapes[item.key]), [])
        entries[item.key].chunks.append(ChunkStorageMetadata(Size(item.offsets), Size(item.sizes)))
        stored[MetadataIndex(item.key, Size(item.offsets))] = place
    metadata = Metadata(entries, planner_data=None, storage_data=stored, storage_meta=StorageMeta())
    (folder / METADATA).write_bytes(pickle.dumps(metadata))


def layer_of(item: Item) -> int | None:
    """The layer of an item, counted from 0; None = not part of a layer."""
    if numbered := NUMBERED.match(item.key):
        return int(numbered["layer"])
    if not STACKED.match(item.key):
        return None
    if item.offsets is not None:
        return item.offsets[0]
    shard = SHARD.match(item.key)
    return int(shard["layer"]) if shard else None


def layers_in(index: Index) -> int:
    """The number of layers.

    Raises:
        RefusedInput: there are none, or a chunk spans several layers.
    """
    for item in index.items:
        if item.sizes and STACKED.match(item.key) and item.sizes[0] != 1:
            raise RefusedInput(f"{index.folder}: a chunk of {item.key} spans several layers, which is not supported")
    found = {layer for item in index.items if (layer := layer_of(item)) is not None}
    if not found:
        raise RefusedInput(f"{index.folder} has no decoder.layers: it is not a GPT checkpoint of megatron-core")
    return max(found) + 1


def read_item(folder: Path, item: Item) -> Any:
    """A chunk as a tensor on the CPU."""
    with (folder / item.file).open("rb") as file:
        file.seek(item.start)
        data = file.read(item.length)
    return load_torch(io.BytesIO(data), what=f"{folder / item.file} ({item.key})", allow=DEFAULT | FOREIGN)


def saved(tensor: Any) -> memoryview:
    """The bytes that torch_dist stores for a tensor."""
    import torch

    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    return buffer.getbuffer()


class Tensors:
    """Tensors by name and layer number, assembled from their chunks on request."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._items: dict[tuple[str, int | None], list[Item]] = {}
        for item in index.items:
            if item.offsets is not None:
                numbered = NUMBERED.match(item.key)
                key = numbered["head"] + numbered["rest"] if numbered else item.key
                self._items.setdefault((key, layer_of(item)), []).append(item)

    def has(self, key: str, layer: int | None = None) -> bool:
        return (key, layer) in self._items

    def shapes(self) -> dict[tuple[str, int | None], tuple[int, ...]]:
        """Of each tensor, of a layer without the leading axis."""
        found = {}
        for (key, layer), items in self._items.items():
            shape = self._index.shapes[items[0].key]
            stacked = layer is not None and not NUMBERED.match(items[0].key)
            found[key, layer] = shape[1:] if stacked else shape
        return found

    def names(self) -> Iterator[tuple[str, int | None]]:
        yield from self._items

    def get(self, key: str, layer: int | None = None) -> Any:
        """Reads a tensor; one of a layer without the leading axis.

        Raises:
            RefusedInput: the checkpoint has no tensor of this name.
        """
        import torch

        items = self._items.get((key, layer))
        if items is None:
            where = "" if layer is None else f" of layer {layer}"
            raise RefusedInput(f"{self._index.folder} has no tensor {key}{where}")
        shape, stacked = self._index.shapes[items[0].key], layer is not None and not NUMBERED.match(items[0].key)
        whole = torch.empty(shape[1:] if stacked else shape, dtype=self._index.dtypes[items[0].key])
        for item in items:
            assert item.offsets is not None and item.sizes is not None
            place = [slice(o, o + n) for o, n in zip(item.offsets, item.sizes, strict=True)]
            chunk = read_item(self._index.folder, item)
            whole[tuple(place[1:] if stacked else place)] = chunk[0] if stacked else chunk
        return whole
