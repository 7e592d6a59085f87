"""Describes a checkpoint folder or file from metadata alone: format, model, size."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

from colosseum.checkpoint import folders
from colosseum.checkpoint.metadata import CheckpointMetadata
from colosseum.checkpoint.safetensors import read_header
from colosseum.checkpoint.torchdist import METADATA, Index, layer_of, read_index
from colosseum.errors import ColosseumError, RefusedInput
from colosseum.reading import Unreadable, read_object
from colosseum.recipe.source import run_and_step
from colosseum.rundir import CHECKPOINT_MARK, checkpoint_folder
from colosseum.units import format_bytes

Kind = Literal["colosseum", "megatron-lm", "nemo2", "huggingface", "nemo", "unfinished", "unknown"]
NAMES: dict[str, str] = {
    "colosseum": "torch_dist checkpoint of colosseum",
    "megatron-lm": "torch_dist checkpoint of Megatron-LM",
    "nemo2": "torch_dist checkpoint of NeMo 2",
    "huggingface": "Hugging Face model (safetensors)",
    "nemo": ".nemo archive of NeMo 1.x",
    "unfinished": "unfinished checkpoint",
    "unknown": "not a known checkpoint format",
}
MAX_JSON = 1 << 24
HF_LAYER = re.compile(r"\.layers\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """Description of a checkpoint."""

    path: Path
    kind: Kind
    bytes: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    """By name: layers, dtype, step, model, layout, consumed_tokens, versions, …; only what the format records."""
    tensors: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Shape and dtype by name; empty unless requested."""

    def as_json(self) -> dict[str, Any]:
        known: dict[str, Any] = {"path": str(self.path), "kind": self.kind, "bytes": self.bytes, **self.facts}
        if self.tensors:
            known["tensors"] = {name: {"shape": list(s), "dtype": d} for name, (s, d) in self.tensors.items()}
        return known


def inspect(path: Path, *, tensors: bool = False) -> Inspected:
    """Describes ``path``. No tensor is read.

    Args:
        tensors: list names and shapes too; for torch_dist this needs torch.

    Raises:
        RefusedInput: the path does not exist, or its metadata is damaged.
    """
    if not path.exists():
        raise RefusedInput(f"{path}: no such file or folder")
    if path.is_file():
        return _file(path)
    size = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    if (path / CHECKPOINT_MARK).exists():
        facts, shapes = _ours(folders.read_metadata(path)), _tensors(read_index(path)) if tensors else {}
        return Inspected(path=path, kind="colosseum", bytes=size, facts=facts, tensors=shapes)
    if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return _huggingface(path, size, tensors)
    weights = path / "weights" if (path / "weights" / METADATA).exists() else path
    if (weights / METADATA).exists():
        return _foreign(path, weights, size, tensors)
    half = any(path.glob("*.distcp")) or path.name.startswith("iter_")
    return Inspected(path=path, kind="unfinished" if half else "unknown", bytes=size)


def _tensors(index: Index) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (shape, str(index.dtypes[name]).removeprefix("torch.")) for name, shape in index.shapes.items()}


def _ours(metadata: CheckpointMetadata) -> dict[str, Any]:
    known = metadata.model_dump(mode="json", exclude={"schema_", "files"})
    return {"layers": metadata.model.num_layers, "files": len(metadata.files), **known}


def _foreign(path: Path, weights: Path, size: int, tensors: bool) -> Inspected:
    """torch_dist without colosseum.json: ``.metadata`` is a pickle, read through the list of data types."""
    ours = (path.parent.parent / "bundle" / "manifest.json").exists()
    if ours or ".unfinished" in path.name:
        return Inspected(path=path, kind="unfinished", bytes=size)
    index = read_index(weights)
    model = {key: shape for key, shape in index.shapes.items() if not key.startswith(("optimizer", "chained_"))}
    dtypes = sorted({str(index.dtypes[key]).removeprefix("torch.") for key in model})
    layers = [layer for item in index.items if (layer := layer_of(item)) is not None]
    nemo = weights != path or (path / "context").exists() or any(key.startswith("module.") for key in model)
    facts: dict[str, Any] = {
        "layers": max(layers, default=-1) + 1,
        "dtype": ", ".join(dtypes),
        "parameters": sum(prod(shape) for shape in model.values()),
        "has_optimizer": len(model) < len(index.shapes),
    }
    if (number := path.name.removeprefix("iter_")).isdigit():
        facts["step"] = int(number)
    shapes = _tensors(index) if tensors else {}
    return Inspected(path=path, kind="nemo2" if nemo else "megatron-lm", bytes=size, facts=facts, tensors=shapes)


def _huggingface(path: Path, size: int, tensors: bool) -> Inspected:
    config = read_json(path / "config.json")
    found = {name: t for file in sorted(path.glob("*.safetensors")) for name, t in read_header(file).items()}
    layers = {int(match[1]) for name in found if (match := HF_LAYER.search(name))}
    facts = {
        "layers": len(layers),
        "dtype": ", ".join(sorted({t.dtype for t in found.values()})),
        "parameters": sum(prod(t.shape) for t in found.values()),
        "architectures": config.get("architectures") or [],
        "model_type": config.get("model_type"),
        "files": len(list(path.glob("*.safetensors"))),
    }
    missing = missing_shards(path)
    if missing:
        facts["missing_files"] = missing
    shapes = {name: (t.shape, t.dtype) for name, t in found.items()} if tensors else {}
    kind: Kind = "unfinished" if missing else "huggingface"
    return Inspected(path=path, kind=kind, bytes=size, facts=facts, tensors=shapes)


def missing_shards(folder: Path) -> list[str]:
    """Missing files that the index of a sharded Hugging Face model lists."""
    index = folder / "model.safetensors.index.json"
    names = read_json(index).get("weight_map", {}).values() if index.exists() else ()
    return sorted({name for name in names if not (folder / name).is_file()})


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON file that contains one object.

    Raises:
        RefusedInput: it cannot be read as one.
    """
    try:
        return read_object(path, MAX_JSON)
    except (OSError, Unreadable) as error:
        raise RefusedInput(f"{path} cannot be read, or does not contain a JSON object") from error


def _file(path: Path) -> Inspected:
    size = path.stat().st_size
    if path.suffix == ".safetensors":
        found = read_header(path)
        facts = {"parameters": sum(prod(t.shape) for t in found.values()), "tensors_in_file": len(found)}
        return Inspected(path=path, kind="huggingface", bytes=size, facts=facts)
    try:
        with tarfile.open(path) as archive:
            names: list[str] = []
            while len(names) < 10_000 and (member := archive.next()) is not None:
                names.append(member.name.removeprefix("./"))
    except (tarfile.TarError, OSError, EOFError):
        names = []
    if "model_config.yaml" not in names:
        return Inspected(path=path, kind="unknown", bytes=size)
    inside = "zarr" if any(n.endswith(".zarray") for n in names) else "torch_dist"
    if not any(n.startswith("model_weights/") for n in names):
        inside = "torch"
    return Inspected(path=path, kind="nemo", bytes=size, facts={"weights": inside, "files": len(names)})


def damaged(path: Path) -> list[str]:
    """Files of a complete checkpoint that changed since they were written; every byte is read.

    Raises:
        RefusedInput: it has no checksums.
    """
    if not (path / CHECKPOINT_MARK).exists():
        raise RefusedInput(
            f"{path} has no checksums: only checkpoints written by colosseum ({CHECKPOINT_MARK}) have them"
        )
    metadata = folders.read_metadata(path)
    found = folders.checksums(path, sorted(metadata.files))
    return [name for name, file in found.items() if file != metadata.files[name]]


def find(text: str, run_of: Any) -> Path:
    """The folder or file of RUN, RUN@STEP or a path.

    Args:
        run_of: returns the RunDir for a run's name.

    Raises:
        RefusedInput: it does not exist, or the run has no complete checkpoint.
    """
    path = Path(text)
    if path.exists() and not (path / "checkpoints").is_dir():
        return path
    name, wanted = run_and_step(text)
    try:
        checkpoints = Path(name) / "checkpoints" if Path(name).is_dir() else run_of(name).checkpoints
    except ColosseumError as error:
        raise RefusedInput(f"{text} is neither a path nor the name of a run") from error
    if wanted is None:
        wanted = folders.newest_committed(checkpoints)
    if wanted is None:
        raise RefusedInput(f"{name} has no complete checkpoint")
    return checkpoint_folder(checkpoints, wanted)


def inspected_text(found: Inspected, *, sound: bool) -> str:
    """The description as lines.

    Args:
        sound: every byte was read, and all checksums are correct.
    """
    lines = [f"{found.path}: {NAMES[found.kind]}, {format_bytes(found.bytes)}"]
    lines += [f"  {name}: {_text(value)}" for name, value in found.facts.items() if value not in (None, {}, [])]
    lines += [f"  {name} {list(shape)} {dtype}" for name, (shape, dtype) in found.tensors.items()]
    return "\n".join([*lines, *(["all checksums are correct"] if sound else [])])


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(v)}" for k, v in value.items() if v is not None)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
