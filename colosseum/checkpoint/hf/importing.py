"""Imports a Hugging Face folder as a torch_dist checkpoint that the runtime loads under any layout.

One tensor is in memory at a time, with the Hugging Face tensors that it is made of.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from colosseum.checkpoint.hf import facts
from colosseum.checkpoint.hf.mapping import Part
from colosseum.checkpoint.hf.source import GENERATION, TOKENIZER_FILES, HfModel, opened, read_folder
from colosseum.checkpoint.hf.tensors import joined, shape_of
from colosseum.checkpoint.metadata import CheckpointMetadata, ModelShape
from colosseum.checkpoint.partial import folder_continued, key_of
from colosseum.checkpoint.writing import DTYPES, FILE_BYTES, Progress, Writer, finish, make_room
from colosseum.recipe.schema import Tokenizer


def import_hf(
    folder: Path, out: Path, *, dtype: str | None = None, file_bytes: int = FILE_BYTES, progress: Progress | None = None
) -> HfModel:
    """Writes the checkpoint ``out``: weights only, step 0. It appears complete, or not at all.

    After an interruption the same call continues with the files that are missing.

    Args:
        dtype: bf16 or fp32; None = the one that represents the weights without loss.

    Raises:
        RefusedInput: the folder's model is not supported, or ``out`` exists.
        EnvironmentFault: there is not enough space on the disk.
    """
    source = read_folder(folder)
    dtype = dtype or source.dtype
    size = _size(source, dtype)
    make_room(out, size)
    start = time.monotonic()
    files = sorted({stored.file for stored in source.tensors.values()})
    key = key_of("import hf", dtype, file_bytes, source.config, files=[folder / name for name in files])
    with folder_continued(out, key) as part, Writer(part.folder, file_bytes, part) as writer:
        _write_tensors(source, writer, DTYPES[dtype], lambda done: progress and progress(done, size))
        writer.close(DTYPES[dtype])
        _write_rest(source, part.folder)
        metadata = _metadata(source, dtype, time.monotonic() - start)
        finish(part.folder, metadata.model_copy(update={"files": writer.sums}))
    return source


def _size(source: HfModel, dtype: str) -> int:
    rows = sum(torch.Size(shape).numel() for part in source.parts() for shape in part.shapes)
    return int(rows * DTYPES[dtype].itemsize)


def _write_tensors(source: HfModel, writer: Writer, dtype: torch.dtype, done: Callable[[int], Any]) -> None:
    model, layers = source.model, source.model.num_layers
    with opened(source) as get:
        for part in source.parts():

            def make(part: Part = part) -> torch.Tensor:
                return joined(part, [get(name).to(dtype) for name in part.names], model)

            writer.tensor(part.key, shape_of(part, model), make, part.layer, layers)
            done(writer.total)
    writer.objects(model)


def _write_rest(source: HfModel, temporary: Path) -> None:
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


def _metadata(source: HfModel, dtype: str, seconds: float) -> CheckpointMetadata:
    shape = ModelShape.of_model(source.model, source.model.max_position_embeddings or 1)
    packages = ("colosseum", "torch", "safetensors")
    run_id = f"hf:{_name(source)}"
    return CheckpointMetadata.of_weights(shape, dtype, run_id=run_id, packages=packages, save_time_s=seconds)
