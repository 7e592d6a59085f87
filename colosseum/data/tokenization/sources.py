"""From what the user names (files, folders, globs) to the source files of a corpus, in a fixed order."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from colosseum.errors import Fault, RefusedInput

Format = Literal["jsonl", "parquet", "arrow", "text"]
Compression = Literal["gzip", "zstd"] | None

FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "text",
    ".md": "text",
}
COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_METADATA = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "manifest.json"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of the corpus; size and time tell whether it changed."""

    path: Path
    format: Format
    compression: Compression
    bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    files: tuple[SourceFile, ...]
    ignored: tuple[Path, ...]
    """Files of folders that have no known suffix."""


def find_sources(inputs: Sequence[str]) -> Sources:
    """The files of ``inputs`` in their order; those of a folder or glob sorted by path. No file is read twice.

    A file that is named itself is read whatever its suffix: unknown ones as plain text. A folder of Hugging Face
    ``datasets`` (``save_to_disk``) is read in the order of its ``state.json``.

    Raises:
        RefusedInput: an input does not exist, is empty, or is a dictionary of splits.
    """
    files: dict[Path, SourceFile] = {}
    ignored: list[Path] = []
    for given in inputs:
        before = len(files)
        for path, named in _paths(given):
            kind = _kind(path)
            if kind is None and not named:
                ignored.append(path)
                continue
            source = _source(path, *(kind or ("text", None)))
            files.setdefault(path.resolve(), source)
        if len(files) == before and not any(p.resolve() in files for p, _ in _paths(given)):
            raise _refused(given, f"has no file that can be read ({', '.join((*FORMATS, *COMPRESSIONS))})")
    return Sources(files=tuple(files.values()), ignored=tuple(ignored))


def _paths(given: str) -> Iterator[tuple[Path, bool]]:
    """Paths of one input, and whether the user named the file itself."""
    path = Path(given)
    if path.is_dir():
        yield from ((p, False) for p in _folder(path))
    elif path.exists():
        yield path, True
    elif glob.has_magic(given):
        found = sorted(glob.glob(given, recursive=True))  # noqa: PTH207 (Path.glob takes no absolute pattern)
        if not found:
            raise _refused(given, "matches no file")
        for match in map(Path, found):
            if match.is_dir():
                yield from ((p, False) for p in _folder(match))
            elif match.name not in _METADATA:
                yield match, False
    else:
        names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = [str(path.parent / name) for name in get_close_matches(path.name, names, n=3)]
        raise _refused(given, "does not exist", near)


def _folder(folder: Path) -> list[Path]:
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(str(p) for p in folder.iterdir() if (p / "state.json").is_file())
        raise _refused(str(folder), "holds several splits of a Hugging Face dataset; name one", splits)
    state = folder / "state.json"
    if state.is_file() and any(folder.glob("*.arrow")):
        return _saved_dataset(folder, state)
    found = (p for p in folder.rglob("*") if p.is_file() and p.name not in _METADATA)
    return sorted(p for p in found if not any(part.startswith((".", "_")) for part in p.relative_to(folder).parts))


def _saved_dataset(folder: Path, state: Path) -> list[Path]:
    """Files of a Hugging Face dataset in its own order; rows that it selects through an index are not supported."""
    try:
        data = json.loads(state.read_bytes())
        names = [str(entry["filename"]) for entry in data["_data_files"]]
        indices = data.get("_indices_files")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _refused(str(state), "is not the state of a Hugging Face dataset") from error
    if indices:
        raise _refused(str(folder), "selects its rows through an index; save it after `flatten_indices()`")
    if wrong := [name for name in names if Path(name).name != name]:
        raise _refused(str(state), f"names a file outside its folder: {wrong[0]!r}")
    return [folder / name for name in names]


def _kind(path: Path) -> tuple[Format, Compression] | None:
    compression = COMPRESSIONS.get(path.suffix.lower())
    suffix = Path(path.stem).suffix if compression else path.suffix
    format = FORMATS.get(suffix.lower())
    if format is None or (compression and format in ("parquet", "arrow")):
        return ("text", compression) if compression and format is None and not suffix else None
    return format, compression


def _source(path: Path, format: Format, compression: Compression) -> SourceFile:
    try:
        stat = path.stat()
    except OSError as error:
        raise _refused(str(path), f"cannot be read: {error.strerror}") from error
    return SourceFile(path=path, format=format, compression=compression, bytes=stat.st_size, mtime_ns=stat.st_mtime_ns)


def _refused(given: str, rule: str, near: Sequence[str] = ()) -> RefusedInput:
    return RefusedInput([Fault(path="", value=None, rule=f"{given} {rule}", nearest=tuple(near), where="command line")])
