"""A weights-only torch_dist checkpoint, written tensor by tensor: by imports and averages."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch

from colosseum.atomic import to_disk, write_whole
from colosseum.checkpoint import folders
from colosseum.checkpoint.metadata import CheckpointMetadata, FileSum
from colosseum.checkpoint.torchdist import Index, Item, saved, write_index
from colosseum.errors import EnvironmentFault, Fault, RefusedInput
from colosseum.recipe.schema import Model
from colosseum.rundir import CHECKPOINT_MARK
from colosseum.units import format_bytes

FILE_BYTES = 4 << 30
"""Size at which the next file is begun."""
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
BACKEND = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
"""megatron-core's metadata.json."""
Progress = Callable[[int, int], None]
"""Bytes written so far, and in all."""


def refuse_existing(out: Path) -> None:
    """Nothing is written over.

    Raises:
        RefusedInput: ``out`` exists.
    """
    if out.exists() or out.is_symlink():
        raise RefusedInput([Fault(path="OUT", value=str(out), rule="already exists", where="command line")])


def make_room(out: Path, size: int) -> None:
    """Makes the folder that ``out`` will lie in.

    Raises:
        RefusedInput: ``out`` exists.
        EnvironmentFault: the disk has not enough room.
    """
    refuse_existing(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(out.parent).free < size:
        raise EnvironmentFault(f"{out.parent} has not the {format_bytes(size)} that the checkpoint takes")


def finish(folder: Path, metadata: CheckpointMetadata) -> None:
    """Brings all files to disk and writes colosseum.json with their checksums; those in ``metadata`` already stay."""
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    sums = folders.checksums(folder, [name for name in names if name not in metadata.files])
    metadata = metadata.model_copy(update={"files": metadata.files | sums})
    for name in names:
        to_disk(folder / name)
    text = json.dumps(metadata.model_dump(mode="json", by_alias=True), indent=2, sort_keys=True) + "\n"
    write_whole(folder / CHECKPOINT_MARK, text.encode())


class Writer:
    """Items one behind the other in files of bounded size."""

    def __init__(self, folder: Path, file_bytes: int = FILE_BYTES) -> None:
        self._folder, self._file_bytes = folder, file_bytes
        self._items: list[Item] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._file: Any = None
        self._digest: Any = None
        self._at = 0
        self.total = 0
        self.sums: dict[str, FileSum] = {}
        """Of the files that are closed, summed while they were written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def tensor(self, key: str, tensor: torch.Tensor, layer: int | None, layers: int) -> None:
        """A whole tensor, or that of one layer in the stack of ``layers``."""
        shape = tuple(tensor.shape)
        offsets = (0,) * len(shape)
        if layer is None:
            self._shapes[key] = shape
        else:
            tensor = tensor.unsqueeze(0)
            self._shapes[key], offsets, shape = (layers, *shape), (layer, *offsets), (1, *shape)
        # torch.save writes the whole storage behind a view.
        self._add(
            key, saved(tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor), offsets, shape
        )

    def thing(self, key: str, value: Any) -> None:
        """An object."""
        buffer = io.BytesIO()
        torch.save(value, buffer)
        self._add(key, buffer.getbuffer(), None, None)

    def _add(self, key: str, data: memoryview, offsets: tuple[int, ...] | None, sizes: tuple[int, ...] | None) -> None:
        if self._file is None or self._at >= self._file_bytes:
            self._next()
        self._items.append(Item(key, offsets, sizes, Path(self._file.name).name, self._at, len(data)))
        self._file.write(data)
        self._digest.update(data)
        self._at += len(data)
        self.total += len(data)

    def _next(self) -> None:
        import xxhash

        self._close_file()
        name = f"__0_{len(self.sums)}.distcp"
        self._file, self._digest, self._at = (self._folder / name).open("wb"), xxhash.xxh3_64(), 0

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self.sums[Path(self._file.name).name] = FileSum(bytes=self._at, xxh3=self._digest.hexdigest())

    def objects(self, model: Model) -> None:
        """What the runtime's layers ask for besides, on a CPU or with Transformer Engine: nothing remembered of FP8."""
        attention = ("linear_proj", "linear_qkv", "core_attention")
        norms = ("q_layernorm", "k_layernorm") if model.qk_layernorm else ()
        for name in (*(f"self_attention.{n}" for n in (*attention, *norms)), "mlp.linear_fc1", "mlp.linear_fc2"):
            for layer in range(model.num_layers):
                self.thing(f"decoder.layers.{name}._extra_state/shard_{layer}_{model.num_layers}", [None])
        self.thing("decoder.final_layernorm._extra_state/shard_0_1", [None])

    def close(self, dtype: torch.dtype) -> None:
        """Closes the last file and writes what describes them."""
        self._close_file()
        dtypes = dict.fromkeys(self._shapes, dtype)
        write_index(self._folder, Index(self._folder, tuple(self._items), self._shapes, dtypes, None))
        torch.save({}, self._folder / "common.pt")
        (self._folder / "metadata.json").write_text(json.dumps(BACKEND))
