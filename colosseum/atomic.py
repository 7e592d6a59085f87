"""Files that appear whole: written beside their name, brought to disk, then renamed. Standard library only."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name, of the same suffix, for a file that the block writes; at its end the file gets its own name.

    A reader sees the old file or the new one, also after a power cut, and one that has the old one mapped keeps it.
    If the block fails, nothing is left.
    """
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(8)}{path.suffix}")
    try:
        yield temporary
        to_disk(temporary)
        temporary.rename(path)
        to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def folder_appearing(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path`` for the block to fill; at its end it gets that name, which must be free.

    If the block fails, nothing is left; after a kill, a folder whose name begins with a dot. The block brings its files
    to disk.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    temporary.mkdir()
    try:
        yield temporary
        to_disk(temporary)
        temporary.rename(path)
        to_disk(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_whole(path: Path, data: bytes) -> None:
    """Writes or replaces a file at once (see ``replacing``)."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def to_disk(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
