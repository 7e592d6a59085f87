"""The average of checkpoints of one model ("model soup", arXiv:2203.05482), tensor by tensor."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from colosseum.atomic import folder_appearing
from colosseum.checkpoint import folders
from colosseum.checkpoint.adapters import SUFFIX, MergedTensors
from colosseum.checkpoint.hf.description import copy_description
from colosseum.checkpoint.hf.origin import origin_of
from colosseum.checkpoint.metadata import CheckpointMetadata, Origin
from colosseum.checkpoint.torchdist import Tensors, read_index
from colosseum.errors import Fault, RefusedInput
from colosseum.rundir import CHECKPOINT_MARK

STATES = ("optimizer", "chained_", "rng")
"""Beginnings of keys that are no weights."""
Name = tuple[str, int | None]


def average(sources: Sequence[Path], shares: Sequence[float], out: Path) -> CheckpointMetadata:
    """Writes the checkpoint ``out``: weights only, step 0, model.json beside them. It appears whole, or not at all.

    A tensor is summed in FP64, so the average of equal checkpoints is that checkpoint.

    Args:
        shares: of each source; they need not sum to 1.

    Raises:
        RefusedInput: the sources are not of one model, unfinished or damaged, or ``out`` exists.
        EnvironmentFault: the disk has not enough room.
    """
    from colosseum.checkpoint.writing import DTYPES, Writer, finish, make_room

    start = time.monotonic()
    if len(sources) < 2:
        raise RefusedInput("an average needs at least two checkpoints")
    found = [folders.read_metadata(source) for source in sources]
    for source, metadata in zip(sources[1:], found[1:], strict=True):
        if different := found[0].model.differences(metadata.model):
            raise RefusedInput(f"{source} is of another model than {sources[0]}: {', '.join(different)}")
    origin = origin_of(sources[0], found[0])
    dtype = "fp32" if any(metadata.dtype == "fp32" for metadata in found) else "bf16"
    indices = [read_index(source) for source in sources]
    names = _same_names(sources, [Tensors(index) for index in indices])
    tensors = [MergedTensors(Tensors(i), m.lora) for i, m in zip(indices, found, strict=True)]
    size = sum(prod(indices[0].shapes[key]) for key in {key for key, _ in names}) * DTYPES[dtype].itemsize
    make_room(out, size)
    for source, metadata in zip(sources, found, strict=True):
        folders.check_sums(source, metadata)
    with folder_appearing(out) as temporary, Writer(temporary) as writer:
        for key, layer in names:

            def make(key: str = key, layer: int | None = layer) -> Any:
                return _mean([t.get(key, layer) for t in tensors], shares).to(DTYPES[dtype])

            shape = indices[0].shapes[key]
            shape = shape if layer is None else shape[1:]
            writer.tensor(key, shape, make, layer, origin.model.num_layers)
        writer.objects(origin.model)
        writer.close(DTYPES[dtype])
        copy_description(origin, origin.model, temporary)
        metadata = _metadata(sources, found, shares, dtype, time.monotonic() - start)
        finish(temporary, metadata.model_copy(update={"files": writer.sums}))
    return metadata


def shares_of(text: str | None, count: int) -> list[float]:
    """``--weights``: one positive number a checkpoint; None = the same for all.

    Raises:
        RefusedInput: it is something else.
    """
    if text is None:
        return [1.0] * count
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if len(shares) != count or not all(0 < share < float("inf") for share in shares):
        rule = f"names one positive number for each of the {count} checkpoints"
        nearest = (",".join(["1"] * count),)
        raise RefusedInput([Fault(path="--weights", value=text, rule=rule, nearest=nearest, where="command line")])
    return shares


def _same_names(sources: Sequence[Path], tensors: Sequence[Tensors]) -> list[Name]:
    """The weights of a checkpoint, in the order in which they are stored; all have the same."""
    weights = [[n for n in t.names() if not n[0].startswith(STATES) and f"{SUFFIX}." not in n[0]] for t in tensors]
    for source, names in zip(sources, weights, strict=True):
        if other := set(names) ^ set(weights[0]):
            raise RefusedInput(f"{source} and {sources[0]} do not hold the same tensors: {min(other, key=str)[0]}")
    return weights[0]


def _mean(tensors: Sequence[Any], shares: Sequence[float]) -> Any:
    total = tensors[0].double().mul_(shares[0])
    for tensor, share in zip(tensors[1:], shares[1:], strict=True):
        total.add_(tensor, alpha=share)
    return total.div_(sum(shares))


def _metadata(
    sources: Sequence[Path], found: Sequence[CheckpointMetadata], shares: Sequence[float], dtype: str, seconds: float
) -> CheckpointMetadata:
    marks = [hashlib.sha256((source / CHECKPOINT_MARK).read_bytes()).hexdigest() for source in sources]
    names = [f"{metadata.run_id}@{metadata.step}" for metadata in found]
    origin = Origin(
        command="average",
        source=", ".join(names),
        source_hash=hashlib.sha256("".join(marks).encode()).hexdigest(),
        settings={"sources": list(names), "source_hashes": list(marks), "weights": list(shares)},
    )
    return CheckpointMetadata.of_weights(
        found[0].model,
        dtype,
        run_id=f"average:{names[0]}",
        packages=("colosseum", "torch"),
        save_time_s=seconds,
        consumed_tokens=max(metadata.consumed_tokens for metadata in found),
        origin=origin,
    )
