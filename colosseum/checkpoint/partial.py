"""A folder that appears complete or not at all, and whose files survive an interruption.

While it is written it is ``.NAME.partial``: ``files`` becomes the folder, ``notes`` holds one JSON file for each
complete file. The same command continues with the files that have no note.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata as packages
from pathlib import Path
from typing import Any

from colosseum.atomic import to_disk, write_whole
from colosseum.errors import RefusedInput

KEY = "key"


class Partial:
    """The files and notes of a folder that is being written."""

    def __init__(self, root: Path) -> None:
        self.folder, self._notes = root / "files", root / "notes"

    def done(self, name: str) -> dict[str, Any] | None:
        """What ``note`` recorded of a file; None = the file is not complete."""
        try:
            data = json.loads(self._note(name).read_bytes())
            complete = (self.folder / name).stat().st_size == data["bytes"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return dict(data["content"]) if complete else None

    def note(self, name: str, content: Mapping[str, Any]) -> None:
        """Brings a complete file to the disk and records it."""
        to_disk(self.folder / name)
        size = (self.folder / name).stat().st_size
        write_whole(self._note(name), json.dumps({"bytes": size, "content": content}).encode())

    @property
    def has_notes(self) -> bool:
        return any(self._notes.glob("*.json"))

    def _note(self, name: str) -> Path:
        return self._notes / f"{name.replace('/', '.')}.json"

    def prepare(self) -> None:
        """Creates both folders and deletes every file that is not complete."""
        self._notes.mkdir(exist_ok=True)
        self.folder.mkdir(exist_ok=True)
        for path in sorted(self.folder.rglob("*"), reverse=True):  # a folder after what is in it
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif self.done(path.relative_to(self.folder).as_posix()) is None:
                path.unlink()


@contextmanager
def folder_continued(out: Path, key: str) -> Iterator[Partial]:
    """``.NAME.partial`` beside ``out`` for the block to fill; at its end its files get that name.

    After a kill, or an error other than RefusedInput, complete files stay for the next call. The block brings its files
    to the disk.

    Args:
        key: identifies source and settings; files of another key are deleted.

    Raises:
        RefusedInput: another process writes it.
    """
    root = _root(out)
    lock = _locked(root, out)
    part = Partial(root)
    try:
        if not _is(root / KEY, key):
            for path in root.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            write_whole(root / KEY, key.encode())
        part.prepare()
        yield part
        to_disk(part.folder)
        part.folder.rename(out)
        to_disk(out.parent)
        shutil.rmtree(root)
    except BaseException as error:
        if isinstance(error, RefusedInput) or not part.has_notes:
            shutil.rmtree(root, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def bytes_of(out: Path) -> int:
    """What an interrupted call has left of ``out``."""
    return sum(path.stat().st_size for path in _root(out).rglob("*") if path.is_file())


def _root(out: Path) -> Path:
    return out.with_name(f".{out.name}.partial")


def _locked(root: Path, out: Path) -> int:
    """A descriptor of ``root`` that holds its lock; the lock ends with the process."""
    while True:
        root.mkdir(exist_ok=True)
        lock = os.open(root, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if root.exists() and os.fstat(lock).st_ino == root.stat().st_ino:
                return lock
        except BlockingIOError as error:
            os.close(lock)
            raise RefusedInput(f"another process is writing {out}") from error
        os.close(lock)  # the other process has just finished and deleted it


def _is(path: Path, key: str) -> bool:
    try:
        return path.read_text() == key
    except OSError:
        return False


def key_of(*parts: Any, files: Iterable[Path] = ()) -> str:
    """The key of a command: its settings, the files that it reads (by size and time), and what writes them."""
    found = []
    for path in files:
        status = path.stat()
        found.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
    versions = [packages.version(name) for name in ("colosseum", "torch")]
    return hashlib.sha256(json.dumps([parts, found, versions], default=str).encode()).hexdigest()
