"""A checkpoint copied to another place, compared with its checksums on the way."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from colosseum.atomic import folder_appearing, to_disk
from colosseum.checkpoint import folders
from colosseum.checkpoint.hf import facts
from colosseum.checkpoint.hf.description import copy_description, known_origin
from colosseum.checkpoint.metadata import CheckpointMetadata, FileSum
from colosseum.checkpoint.writing import finish, make_room
from colosseum.errors import Fault, RefusedInput
from colosseum.rundir import checkpoint_folder

WORKERS = 4


def copy(source: Path, out: Path, *, verify: bool) -> CheckpointMetadata:
    """Writes the checkpoint ``out``, which appears whole or not at all. What a run's folder says of the model is added.

    Args:
        verify: read the copy again, from the disk, and compare it too.

    Raises:
        RefusedInput: the source is unfinished or damaged, or ``out`` exists or is named for another step.
        EnvironmentFault: the disk has not enough room, or gave back other bytes than were written.
    """
    metadata = folders.read_metadata(source)
    named = checkpoint_folder(out.parent, metadata.step).name
    if out.name.startswith("iter_") and out.name != named:
        rule = f"names another step than the checkpoint's, {metadata.step:,}"
        raise RefusedInput([Fault(path="OUT", value=str(out), rule=rule, nearest=(named,), where="command line")])
    make_room(out, sum(file.bytes for file in metadata.files.values()))
    with folder_appearing(out) as temporary:
        for name in metadata.files:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(WORKERS) as pool:
            sums = pool.map(lambda name: _copied(source / name, temporary / name), metadata.files)
            folders.check_sums(source, metadata, dict(zip(metadata.files, sums, strict=True)))
        if facts.NAME not in metadata.files and (origin := known_origin(source, metadata)) is not None:
            copy_description(origin, origin.model, temporary)
        finish(temporary, metadata)
        if verify:
            for name in metadata.files:
                _forget(temporary / name)
            folders.check_sums(temporary, metadata)
    return metadata


def _copied(source: Path, target: Path) -> FileSum:
    """Copies a file; the checksum of what was read."""
    import xxhash

    digest, size = xxhash.xxh3_64(), 0
    buffer = memoryview(bytearray(folders.BLOCK))
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while count := reader.readinto(buffer):
            digest.update(buffer[:count])
            writer.write(buffer[:count])
            size += count
    return FileSum(bytes=size, xxh3=digest.hexdigest())


def _forget(path: Path) -> None:
    """Takes a file out of the page cache, so that it is read from the disk."""
    to_disk(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
