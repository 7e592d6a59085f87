"""Weights of torch_dist checkpoints that Megatron-LM and NeMo wrote → a checkpoint of ours.

Their tensors have megatron-core's names, behind a prefix in NeMo's; layers are stacked or numbered.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from colosseum.checkpoint.hf.facts import NAME, ModelFacts
from colosseum.checkpoint.metadata import CheckpointMetadata, ModelShape
from colosseum.checkpoint.partial import folder_continued, key_of
from colosseum.checkpoint.torchdist import Index, Tensors
from colosseum.checkpoint.weights import TABLES, weights_of
from colosseum.checkpoint.writing import DTYPES, Progress, Writer, finish, make_room, refuse_existing
from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.schema import Model
from colosseum.recipe.wording import rule_of

NO_WEIGHTS = ("optimizer", "chained_", "rng", "rerun_state")
"""Beginnings of keys that are no weights."""


def import_weights(
    index: Index, model: Model, out: Path, *, name: str, run_id: str, progress: Progress | None = None
) -> CheckpointMetadata:
    """Writes the checkpoint ``out``: weights only, step 0. It appears whole, or not at all.

    After an interruption the same call continues with the files that are missing.

    Args:
        name: of the model, for people.

    Raises:
        RefusedInput: the tensors are not those of ``model``, or ``out`` exists.
        EnvironmentFault: the disk has not enough room.
    """
    refuse_existing(out)
    start, prefix = time.monotonic(), _prefix(index)
    tensors, wanted = Tensors(index), list(weights_of(model))
    _check(index, tensors, model, prefix)
    dtype = "bf16" if all(index.dtypes[key] == torch.bfloat16 for key in _weights(index)) else "fp32"
    size = sum(prod(shape) for _, _, shape in wanted) * DTYPES[dtype].itemsize
    make_room(out, size)
    identity = key_of("import", index.folder, model.model_dump(mode="json"), dtype, files=_files(index))
    with folder_continued(out, identity) as part, Writer(part.folder, part=part) as writer:
        for key, layer, shape in wanted:

            def make(key: str = key, layer: int | None = layer) -> torch.Tensor:
                tensor = tensors.get(prefix + key, layer).to(DTYPES[dtype])
                return _padded(tensor, model) if key in TABLES else tensor

            rows = (model.padded_vocab(1), *shape[1:]) if key in TABLES else shape
            writer.tensor(key, rows, make, layer, model.num_layers)
            if progress is not None:
                progress(writer.total, size)
        writer.objects(model)
        writer.close(DTYPES[dtype])
        facts = ModelFacts(schema="colosseum.model/1", name=name, architecture=None, model=model, tokenizer=None)
        (part.folder / NAME).write_text(facts.model_dump_json(by_alias=True, indent=2) + "\n")
        metadata = _metadata(model, dtype, run_id, time.monotonic() - start)
        finish(part.folder, metadata.model_copy(update={"files": writer.sums}))
    return metadata


def _files(index: Index) -> list[Path]:
    """The files of the tensors; in an archive, the archive."""
    return sorted({index.folder / item.file for item in index.items})


def _weights(index: Index) -> list[str]:
    return [key for key in index.shapes if not key.startswith(NO_WEIGHTS)]


def _prefix(index: Index) -> str:
    """What stands before megatron-core's names: nothing, ``model.`` (NeMo 1) or ``module.`` (NeMo 2).

    Raises:
        RefusedInput: the checkpoint holds no GPT.
    """
    for key in _weights(index):
        if key.endswith(TABLES[0]):
            return key.removesuffix(TABLES[0])
    raise RefusedInput(f"{index.folder} holds no {TABLES[0]}: it is no GPT that megatron-core wrote")


def rows_of(index: Index) -> int:
    """Rows of the embedding, padding included."""
    return index.shapes[_prefix(index) + TABLES[0]][0]


def _check(index: Index, tensors: Tensors, model: Model, prefix: str) -> None:
    """Every weight of the model is there with its shape, and no other.

    Raises:
        RefusedInput: names the first eight that are not.
    """
    wanted = {(prefix + key, layer): shape for key, layer, shape in weights_of(model)}
    held = {name: shape for name, shape in tensors.shapes().items() if not name[0].startswith(NO_WEIGHTS)}
    faults = []
    for (key, layer), shape in wanted.items():
        found, table = held.get((key, layer)), key.removeprefix(prefix) in TABLES
        if found is None:
            faults.append(_fault(key, layer, None, "is missing"))
        elif found != shape and not (table and found[1:] == shape[1:] and found[0] >= shape[0]):
            faults.append(_fault(key, layer, list(found), f"the model makes it {list(shape)}"))
    faults += [_fault(*name, list(held[name]), "is no tensor of the model") for name in held if name not in wanted]
    if faults:
        more = [_fault("", None, None, f"and {len(faults) - 8:,} more tensors")] if len(faults) > 8 else []
        raise RefusedInput([*faults[:8], *more])


def _fault(key: str, layer: int | None, value: Any, rule: str) -> Fault:
    return Fault(path=key if layer is None else f"{key} of layer {layer}", value=value, rule=rule, where=".metadata")


def _padded(table: torch.Tensor, model: Model) -> torch.Tensor:
    """Rows of tokens, and rows of zeros to our own padding: their padding depends on their TP."""
    rows = model.padded_vocab(1) - model.vocab_size
    return torch.nn.functional.pad(table[: model.vocab_size], (0, 0, 0, rows))


def _metadata(model: Model, dtype: str, run_id: str, seconds: float) -> CheckpointMetadata:
    shape = ModelShape.of_model(model, model.max_position_embeddings or 1)
    packages = ("colosseum", "torch")
    return CheckpointMetadata.of_weights(shape, dtype, run_id=run_id, packages=packages, save_time_s=seconds)


def model_from(values: Mapping[str, Any], where: str) -> Model:
    """A model section of foreign settings.

    Raises:
        RefusedInput: a value is none that a recipe may have.
    """
    try:
        return Model(**values)
    except ValidationError as error:
        faults = [Fault(path=str(e["loc"][0]), value=e["input"], rule=rule_of(e), where=where) for e in error.errors()]
        raise RefusedInput(faults) from error
