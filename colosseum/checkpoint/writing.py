"""A weights-only torch_dist checkpoint, written tensor by tensor: imports, averages, the export to Megatron-LM."""

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
from colosseum.checkpoint.partial import Partial, bytes_of
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
    if shutil.disk_usage(out.parent).free < size - bytes_of(out):
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
    """Items one behind the other in files of bounded size.

    Args:
        part: where complete files are noted; items in files that an earlier call has noted are skipped. The items come
            in the same order then.
    """

    def __init__(self, folder: Path, file_bytes: int = FILE_BYTES, part: Partial | None = None) -> None:
        self._folder, self._file_bytes, self._part = folder, file_bytes, part
        self._items: list[Item] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._file: Any = None
        self._digest: Any = None
        self._at = 0
        self.total = 0
        self.sums: dict[str, FileSum] = {}
        """Of the files that are closed, summed while they were written."""
        self._noted: set[tuple[str, tuple[int, ...] | None]] = set()
        self._take_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def tensor(
        self, key: str, shape: tuple[int, ...], make: Callable[[], torch.Tensor], layer: int | None, layers: int
    ) -> None:
        """A whole tensor, or that of one layer in the stack of ``layers``; made only if it is still to be written."""
        offsets: tuple[int, ...] = (0,) * len(shape)
        if layer is None:
            self._shapes[key] = shape
        else:
            self._shapes[key], offsets, shape = (layers, *shape), (layer, *offsets), (1, *shape)
        if (key, offsets) in self._noted:
            return
        tensor = make().reshape(shape)
        # torch.save writes the whole storage behind a view.
        self._add(
            key, saved(tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor), offsets, shape
        )

    def thing(self, key: str, value: Any) -> None:
        """An object."""
        if (key, None) in self._noted:
            return
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
        name = self._name(len(self.sums))
        self._file, self._digest, self._at = (self._folder / name).open("wb"), xxhash.xxh3_64(), 0

    def _close_file(self) -> None:
        if self._file is None:
            return
        self._file.close()
        name = Path(self._file.name).name
        self.sums[name] = FileSum(bytes=self._at, xxh3=self._digest.hexdigest())
        if self._part is not None:
            items = [[i.key, i.offsets, i.sizes, i.start, i.length] for i in self._items if i.file == name]
            self._part.note(self._place(name), {"sum": self.sums[name].model_dump(), "items": items})

    def _place(self, name: str) -> str:
        assert self._part is not None
        return (self._folder / name).relative_to(self._part.folder).as_posix()

    def _take_up(self) -> None:
        """Files that an earlier call has completed, up to the first that it has not."""
        while self._part is not None:
            name = self._name(len(self.sums))
            if (done := self._part.done(self._place(name))) is None:
                return
            for key, offsets, sizes, start, length in done["items"]:
                places = None if offsets is None else tuple(offsets)
                self._items.append(Item(key, places, None if sizes is None else tuple(sizes), name, start, length))
                self._noted.add((key, places))
            self.sums[name] = FileSum(**done["sum"])
            self.total += self.sums[name].bytes

    @staticmethod
    def _name(number: int) -> str:
        return f"__0_{number}.distcp"

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
