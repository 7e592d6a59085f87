"""Checkpoint folders of a run: find complete ones, commit new ones, delete old ones. No torch, no pickle."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from colosseum.atomic import to_disk, write_whole
from colosseum.checkpoint.metadata import CheckpointMetadata, FileSum
from colosseum.errors import RefusedInput
from colosseum.reading import Unreadable, read_bytes
from colosseum.recipe.source import FromPath, FromRun, Source
from colosseum.rundir import CHECKPOINT_MARK, LATEST_FILE, RunDir, checkpoint_folder, saved_steps

BLOCK = 1 << 24


def read_metadata(folder: Path) -> CheckpointMetadata:
    """Reads the colosseum.json of a complete checkpoint; all its files must exist with the recorded sizes.

    Raises:
        RefusedInput: it does not exist, cannot be read, a file is missing, has another size or lies outside the folder,
            or the folder's name does not match the step.
    """
    try:
        metadata = CheckpointMetadata.model_validate_json(read_bytes(folder / CHECKPOINT_MARK))
    except FileNotFoundError as error:
        raise RefusedInput(f"{folder} is not a complete checkpoint: it has no {CHECKPOINT_MARK}") from error
    except (OSError, Unreadable, ValidationError) as error:
        raise RefusedInput(
            f"{folder / CHECKPOINT_MARK} cannot be read, or is not a valid checkpoint description"
        ) from error
    if (number := folder.name.removeprefix("iter_")).isdigit() and int(number) != metadata.step:
        raise RefusedInput(
            f"{folder} is not a checkpoint of step {int(number)}: its {CHECKPOINT_MARK} says step {metadata.step}"
        )
    for name, expected in metadata.files.items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise RefusedInput(f"{folder} refers to {name!r}, which is not a file in its folder")
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            raise RefusedInput(f"{folder} is damaged: {name} is missing") from error
        if size != expected.bytes:
            raise RefusedInput(f"{folder} is damaged: {name} has {size} bytes, not {expected.bytes}")
    return metadata


def is_committed(folder: Path) -> bool:
    """Whether ``read_metadata`` accepts it."""
    try:
        read_metadata(folder)
    except RefusedInput:
        return False
    return True


def newest_committed(checkpoints: Path) -> int | None:
    """The highest step with a complete checkpoint."""
    steps = reversed(saved_steps(checkpoints))
    return next((step for step in steps if is_committed(checkpoint_folder(checkpoints, step))), None)


def source_folder(source: Source, runs: Path) -> Path:
    """The checkpoint that ``checkpoint.from`` names: of a run under ``runs``, or by the path of a run or checkpoint.

    Raises:
        RefusedInput: there is no complete checkpoint.
    """
    match source:
        case FromRun(name, step):
            root = runs / name
        case FromPath(path):
            root, step = Path(path), None
            if root.name.startswith("iter_") or (root / CHECKPOINT_MARK).is_file():
                return root
        case _:
            raise RefusedInput(f"checkpoint.from {source} is not a checkpoint")
    step = newest_committed(RunDir(root).checkpoints) if step is None else step
    if step is None:
        raise RefusedInput(f"checkpoint.from {source}: {root} has no complete checkpoint")
    return checkpoint_folder(RunDir(root).checkpoints, step)


def prepare_step(checkpoints: Path, step: int, attempt: int) -> Path:
    """Creates an empty folder for checkpoint ``step``; an existing one is renamed, neither loaded nor deleted."""
    folder = checkpoint_folder(checkpoints, step)
    if folder.exists():
        set_aside(folder, f"unfinished-{attempt}")
    folder.mkdir(parents=True)
    return folder


def set_aside(folder: Path, why: str) -> Path:
    """Renames ``iter_N`` to ``iter_N.WHY``, or a similar unused name: it no longer counts as a checkpoint."""
    target = folder.with_name(f"{folder.name}.{why}")
    while target.exists():
        target = folder.with_name(f"{folder.name}.{why}-{secrets.token_hex(2)}")
    return folder.rename(target)


def checksums(folder: Path, names: Iterable[str]) -> dict[str, FileSum]:
    """Size and XXH3-64 of files."""
    import xxhash

    found = {}
    for name in names:
        digest, size = xxhash.xxh3_64(), 0
        with (folder / name).open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
                size += len(block)
        found[name] = FileSum(bytes=size, xxh3=digest.hexdigest())
    return found


def check_sums(folder: Path, metadata: CheckpointMetadata, found: dict[str, FileSum] | None = None) -> None:
    """Compares every file with its checksum, so that damage is not copied.

    Args:
        found: checksums, where the files have been read already.

    Raises:
        RefusedInput: a file was changed since.
    """
    found = checksums(folder, sorted(metadata.files)) if found is None else found
    if changed := [name for name, total in found.items() if total != metadata.files[name]]:
        raise RefusedInput(f"{folder} is damaged: {', '.join(changed[:3])} changed since it was written")


def commit(checkpoints: Path, step: int, metadata: CheckpointMetadata) -> None:
    """Commits checkpoint ``step``: flushes its files to disk first, then colosseum.json, then Megatron's tracker."""
    folder = checkpoint_folder(checkpoints, step)
    for name in metadata.files:
        to_disk(folder / name)
    text = json.dumps(metadata.model_dump(mode="json", by_alias=True), indent=2, sort_keys=True) + "\n"
    write_whole(folder / CHECKPOINT_MARK, text.encode())
    to_disk(checkpoints)
    write_whole(checkpoints / LATEST_FILE, f"{step}\n".encode())


def prune(checkpoints: Path, keep_last: int | None, keep_every: int | None) -> list[int]:
    """Deletes all but the last ``keep_last`` complete checkpoints (None = keeps all); returns the deleted steps."""
    gone = [] if keep_last is None else beyond(checkpoints, keep_last, keep_every)
    for step in gone:
        delete(checkpoints, step)
    return gone


def beyond(checkpoints: Path, keep_last: int, keep_every: int | None) -> list[int]:
    """Complete steps before the last ``keep_last`` (at least 1) that ``keep_every`` does not divide."""
    steps = [step for step in saved_steps(checkpoints) if is_committed(checkpoint_folder(checkpoints, step))]
    return [step for step in steps[:-keep_last] if keep_every is None or step % keep_every]


def delete(checkpoints: Path, step: int) -> None:
    """Deletes a checkpoint, colosseum.json first: a half-deleted folder is unfinished."""
    folder = checkpoint_folder(checkpoints, step)
    (folder / CHECKPOINT_MARK).unlink()
    shutil.rmtree(folder)
