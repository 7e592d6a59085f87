"""Imports a Hugging Face folder as a torch_dist checkpoint that the runtime loads under any layout.

One tensor is in memory at a time, with the Hugging Face tensors that it is made of.
"""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable
from importlib import metadata as packages
from pathlib import Path
from typing import Any, Self

import torch

from colosseum.atomic import folder_appearing, to_disk, write_whole
from colosseum.checkpoint import folders
from colosseum.checkpoint.hf import facts
from colosseum.checkpoint.hf.mapping import OBJECTS
from colosseum.checkpoint.hf.source import GENERATION, TOKENIZER_FILES, HfModel, opened, read_folder
from colosseum.checkpoint.hf.tensors import joined
from colosseum.checkpoint.metadata import CHECKPOINT_SCHEMA, CheckpointMetadata, Layout, ModelShape
from colosseum.checkpoint.torchdist import Index, Item, saved, write_index
from colosseum.errors import EnvironmentFault, Fault, RefusedInput
from colosseum.recipe.schema import Tokenizer
from colosseum.rundir import CHECKPOINT_MARK
from colosseum.units import format_bytes

FILE_BYTES = 4 << 30
"""Size at which a new file is started."""
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
BACKEND = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
"""megatron-core's metadata.json."""
Progress = Callable[[int, int], None]
"""Bytes written so far, and in total."""


def import_hf(
    folder: Path, out: Path, *, dtype: str | None = None, file_bytes: int = FILE_BYTES, progress: Progress | None = None
) -> HfModel:
    """Writes the checkpoint ``out``: weights only, step 0. It appears complete, or not at all.

    Args:
        dtype: bf16 or fp32; None = the one that represents the weights without loss.

    Raises:
        RefusedInput: the folder's model is not supported, or ``out`` exists.
        EnvironmentFault: there is not enough space on the disk.
    """
    source = read_folder(folder)
    if out.exists() or out.is_symlink():
        raise RefusedInput([Fault(path="OUT", value=str(out), rule="already exists", where="command line")])
    dtype = dtype or source.dtype
    size = _size(source, dtype)
    out.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(out.parent).free < size:
        raise EnvironmentFault(
            f"{out.parent} has less than the {format_bytes(size)} of free space that the checkpoint needs"
        )
    start = time.monotonic()
    with folder_appearing(out) as temporary, _Writer(temporary, file_bytes) as writer:
        _write_tensors(source, writer, DTYPES[dtype], lambda done: progress and progress(done, size))
        writer.close(DTYPES[dtype])
        _write_rest(source, temporary, out)
        names = sorted(p.relative_to(temporary).as_posix() for p in temporary.rglob("*") if p.is_file())
        metadata = _metadata(source, out, dtype, time.monotonic() - start)
        metadata = metadata.model_copy(update={"files": folders.checksums(temporary, names)})
        for name in names:
            to_disk(temporary / name)
        text = json.dumps(metadata.model_dump(mode="json", by_alias=True), indent=2, sort_keys=True) + "\n"
        write_whole(temporary / CHECKPOINT_MARK, text.encode())
    return source


def _size(source: HfModel, dtype: str) -> int:
    rows = sum(torch.Size(shape).numel() for part in source.parts() for shape in part.shapes)
    return int(rows * DTYPES[dtype].itemsize)


class _Writer:
    """Writes items one after another into files of limited size."""

    def __init__(self, folder: Path, file_bytes: int) -> None:
        self._folder, self._file_bytes = folder, file_bytes
        self._items: list[Item] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._file: Any = None
        self._at = 0
        self.total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def tensor(self, key: str, tensor: torch.Tensor, layer: int | None, layers: int) -> None:
        """Adds a whole tensor, or one layer's part of a tensor stacked over ``layers``."""
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
        """Adds an object."""
        buffer = io.BytesIO()
        torch.save(value, buffer)
        self._add(key, buffer.getbuffer(), None, None)

    def _add(self, key: str, data: memoryview, offsets: tuple[int, ...] | None, sizes: tuple[int, ...] | None) -> None:
        if self._file is None or self._at >= self._file_bytes:
            self._next()
        self._items.append(Item(key, offsets, sizes, Path(self._file.name).name, self._at, len(data)))
        self._file.write(data)
        self._at += len(data)
        self.total += len(data)

    def _next(self) -> None:
        number = len({item.file for item in self._items})
        if self._file is not None:
            self._file.close()
        self._file, self._at = (self._folder / f"__0_{number}.distcp").open("wb"), 0

    def close(self, dtype: torch.dtype) -> None:
        """Closes the last file and writes ``.metadata``."""
        self._file.close()
        dtypes = dict.fromkeys(self._shapes, dtype)
        write_index(self._folder, Index(self._folder, tuple(self._items), self._shapes, dtypes, None))
        torch.save({}, self._folder / "common.pt")
        (self._folder / "metadata.json").write_text(json.dumps(BACKEND))


def _write_tensors(source: HfModel, writer: _Writer, dtype: torch.dtype, done: Callable[[int], Any]) -> None:
    model, layers = source.model, source.model.num_layers
    with opened(source) as get:
        for part in source.parts():
            tensor = joined(part, [get(name).to(dtype) for name in part.names], model)
            writer.tensor(part.key, tensor, part.layer, layers)
            del tensor
            done(writer.total)
    # The runtime's layers need these keys; None = no FP8 history.
    for name in OBJECTS:
        for layer in range(layers):
            writer.thing(f"decoder.layers.{name}._extra_state/shard_{layer}_{layers}", [None])
    writer.thing("decoder.final_layernorm._extra_state/shard_0_1", [None])


def _write_rest(source: HfModel, temporary: Path, out: Path) -> None:
    tokenizer = None
    folder = temporary / facts.TOKENIZER
    folder.mkdir()
    for name in TOKENIZER_FILES:
        if (source.folder / name).is_file():
            shutil.copyfile(source.folder / name, folder / name)
    (folder / GENERATION).write_text(json.dumps(source.generation, indent=2) + "\n")
    if source.tokenizer is not None:
        file = source.tokenizer
        tokenizer = Tokenizer(kind=file.kind, path=f"{facts.TOKENIZER}/{file.name}", eod=file.eod)
    found = facts.ModelFacts(
        schema="colosseum.model/1",
        name=_name(source),
        architecture=source.family.architecture,
        model=source.model,
        tokenizer=tokenizer,
    )
    text = json.dumps(found.model_dump(mode="json", by_alias=True), indent=2) + "\n"
    (temporary / facts.NAME).write_text(text)


def _name(source: HfModel) -> str:
    return source.folder.resolve().name


def _metadata(source: HfModel, out: Path, dtype: str, seconds: float) -> CheckpointMetadata:
    return CheckpointMetadata(
        schema=CHECKPOINT_SCHEMA,
        step=0,
        consumed_samples=0,
        consumed_tokens=0,
        layout=Layout(tp=1, pp=1, vpp=1, cp=1, dp=1),
        model=ModelShape.of_model(source.model, source.model.max_position_embeddings or 1),
        dtype=dtype,
        fp8="none",
        sharded_optimizer=False,
        has_optimizer=False,
        tokens_by_source={},
        sample_order="",
        recipe_hash="",
        run_id=f"hf:{_name(source)}",
        versions={name: packages.version(name) for name in ("colosseum", "torch", "safetensors")},
        save_time_s=round(seconds, 3),
        files={},
    )
