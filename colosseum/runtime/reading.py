"""Puts `checkpoint.unpickle` in front of every pickle that torch and megatron-core read for a rank.

torch reads ``.metadata`` and the objects in ``*.distcp`` with nothing refused, megatron-core its index caches, and
Transformer Engine what it remembers of FP8. Whoever can write one of those files would run code in every rank.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import megatron.core.datasets.gpt_dataset as gpt_dataset
import numpy as np
import torch
from megatron.core.dist_checkpointing import serialization
from megatron.core.dist_checkpointing.strategies import common
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import StorageMeta

from colosseum.checkpoint import unpickle
from colosseum.checkpoint.torchdist import MAX_INDEX
from colosseum.checkpoint.unpickle import load_pickle, load_torch
from colosseum.errors import RefusedInput
from colosseum.reading import Unreadable, read_bytes
from colosseum.runtime.failures import DataFailure

ALLOW = unpickle.DEFAULT | unpickle.FOREIGN


@functools.cache
def guard() -> None:
    """Replaces the readers; once a process, before anything is read."""
    FileSystemReader.read_metadata = _read_metadata
    DefaultLoadPlanner.load_bytes = _load_bytes
    # megatron-core up to 0.16 has a class for common.pt and reads index caches through numpy, 0.19 has functions.
    if hasattr(common, "TorchCommonLoadStrategy"):
        common.TorchCommonLoadStrategy.load_common = lambda _, checkpoint_dir: _load_common(checkpoint_dir)
    else:
        serialization.load_common = _load_common
    if hasattr(gpt_dataset, "safe_numpy_load"):
        gpt_dataset.safe_numpy_load = _Numpy.load
    else:
        gpt_dataset.numpy = _Numpy()


def _read_metadata(self: Any, *_: Any, **options: Any) -> Any:
    path = Path(self._get_metadata_path(options.get("rank")))
    try:
        content = read_bytes(path, MAX_INDEX)
    except FileNotFoundError as error:
        raise RefusedInput(f"{path} does not exist") from error
    except Unreadable as error:
        raise RefusedInput(f"{path.parent}: {error}") from error
    metadata = load_pickle(content, what=str(path), allow=ALLOW)
    for stored in (metadata.storage_data or {}).values():
        if Path(stored.relative_path).name != stored.relative_path:
            raise RefusedInput(f"{path} refers to {stored.relative_path!r}, which is not a file in its folder: refused")
    if getattr(metadata, "storage_meta", None) is None:
        metadata.storage_meta = StorageMeta()
    metadata.storage_meta.load_id = self.load_id
    return metadata


def _load_bytes(self: Any, read_item: Any, value: io.BytesIO) -> None:
    name = read_item.dest_index.fqn
    loaded = load_torch(value, what=f"the checkpoint's object {name}", allow=ALLOW)
    if self.flatten_state_dict:
        set_element(self.original_state_dict, self.mappings[name], loaded)
    else:
        self.state_dict[name] = loaded


def _load_common(checkpoint_dir: str | Path) -> Any:
    return load_torch(Path(checkpoint_dir) / common.COMMON_STATE_FNAME, allow=ALLOW)


class CutIndex(DataFailure):
    """An index in the data cache that cannot be used; it can be made again."""

    def __init__(self, path: Path, sentence: str) -> None:
        super().__init__(sentence)
        self.path = path


class _Numpy:
    """numpy, whose ``load`` takes numbers only whatever it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def load(path: str, **options: Any) -> Any:
        """Raises DataFailure: the file holds objects, or is cut."""
        try:
            return np.load(path, **{**options, "allow_pickle": False})
        except (ValueError, EOFError) as error:
            text = " ".join(str(error).split())
            raise CutIndex(Path(path), f"{path} is not an index of megatron-core ({text}): delete it") from error


def check_scaling(state: Mapping[str, Any]) -> None:
    """Refuses a model state whose FP8 memory (``*_extra_state``) holds more than data: its reader looks at nothing.

    Raises:
        RefusedInput: as `load_pickle`.
    """
    allow = ALLOW | unpickle.SCALING
    for name, value in state.items():
        if not name.endswith("_extra_state"):
            continue
        if isinstance(value, torch.Tensor) and value.numel():
            load_pickle(value.detach().cpu().numpy().tobytes(), what=name, allow=allow, inert=unpickle.SCALING)
        elif isinstance(value, io.BytesIO):
            load_torch(value.getvalue(), what=name, allow=allow)
