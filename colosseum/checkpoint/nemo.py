"""NeMo 1.x: a ``.nemo`` archive, or the folder that it holds → a checkpoint of ours. Nothing is unpacked.

Inside lie ``model_config.yaml`` and ``model_weights/``: torch_dist, whose pieces are read where they lie in the
archive, or zarr, one folder per tensor, which is refused.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from colosseum.checkpoint.foreign import import_weights, model_from, rows_of
from colosseum.checkpoint.metadata import CheckpointMetadata
from colosseum.checkpoint.torchdist import METADATA, Index, index_of
from colosseum.checkpoint.writing import Progress
from colosseum.errors import Fault, RefusedInput

CONFIG, WEIGHTS = "model_config.yaml", "model_weights"
MAX_CONFIG = 1 << 20


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a file of the archive begins: in the archive, or a file of its own."""

    path: Path
    start: int
    length: int


def import_nemo(
    path: Path, out: Path, values_of: Callable[[str, str], dict[str, Any]], *, progress: Progress | None = None
) -> CheckpointMetadata:
    """Writes the checkpoint ``out``: weights only.

    Args:
        values_of: makes the fields of a model section of the text of model_config.yaml and its name.

    Raises:
        RefusedInput: it is no ``.nemo``, holds other weights than torch_dist, or a model that is not computed.
    """
    files = _in_folder(path) if path.is_dir() else _in_archive(path)
    if CONFIG not in files or not any(name.startswith(f"{WEIGHTS}/") for name in files):
        raise RefusedInput(f"{path} is no model of NeMo 1.x: it has no {CONFIG} and {WEIGHTS}/")
    config = f"{path}: {CONFIG}"
    values = values_of(_read(files[CONFIG], MAX_CONFIG).decode("utf-8", "replace"), config)
    if f"{WEIGHTS}/{METADATA}" not in files:
        zarr = any(name.endswith("/.zarray") for name in files)
        kind = "zarr" if zarr else "weights of another form than torch_dist"
        raise RefusedInput(f"{path} holds {kind}: save it again with dist_ckpt_format: torch_dist (NeMo 1.23 or later)")
    place = files[f"{WEIGHTS}/{METADATA}"]
    index = _placed(index_of(_read(place, place.length), path / WEIGHTS), files)
    # Its tokenizer says how many tokens there are; without it every row is one.
    model = model_from({"vocab_size": rows_of(index), **values}, config)
    name = path.resolve().name.removesuffix(".nemo")
    return import_weights(index, model, out, name=name, run_id=f"nemo:{name}", progress=progress)


def _placed(index: Index, files: dict[str, _Place]) -> Index:
    """The index with each piece where it lies."""
    items = []
    for item in index.items:
        place = files.get(f"{WEIGHTS}/{item.file}")
        if place is None or item.start + item.length > place.length:
            raise RefusedInput(f"{index.folder} is cut: {item.file}, which {METADATA} names, is missing or too short")
        items.append(replace(item, file=str(place.path.resolve()), start=place.start + item.start))
    return replace(index, items=tuple(items))


def _read(place: _Place, limit: int) -> bytes:
    if place.length > limit:
        raise RefusedInput(f"{place.path}: {CONFIG} has {place.length:,} bytes")
    with place.path.open("rb") as file:
        file.seek(place.start)
        return file.read(place.length)


def _in_folder(folder: Path) -> dict[str, _Place]:
    found = {}
    for path in (folder / CONFIG, *(folder / WEIGHTS).rglob("*")):
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = _Place(path, 0, path.stat().st_size)
    return found


def _in_archive(path: Path) -> dict[str, _Place]:
    """Files of a tar that is not compressed, by name.

    Raises:
        RefusedInput: it is none.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            files = [member for member in archive if member.isreg()]
            size = path.stat().st_size
    except (OSError, tarfile.TarError) as error:
        why = "compressed: unpack it into a folder and name that" if _is_gzip(path) else "no archive that can be read"
        raise RefusedInput([Fault(path="FILE", value=str(path), rule=f"is {why}", where="command line")]) from error
    if any(member.offset_data + member.size > size for member in files):
        raise RefusedInput(f"{path} is cut short")
    return {m.name.removeprefix("./"): _Place(path, m.offset_data, m.size) for m in files}


def _is_gzip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"\x1f\x8b"
    except OSError:
        return False
