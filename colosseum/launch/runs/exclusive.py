"""One command at a time starts jobs in a folder (of a run, a campaign, a sweep), on every machine that shares it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from colosseum import owner
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.records import write_first

FOLDER = "commands"
POLL_S = 0.5


@contextmanager
def exclusively(folder: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """While the block lasts, no other command is in it: a numbered file, made by link and removed at the end.

    A command that was killed leaves its file, which names its process: one that has ended is passed over.

    Raises:
        RefusedInput: another command is in it, after ``wait_s`` seconds too, or cannot be seen from this machine.
        EnvironmentFault: the folder cannot be written.
    """
    deadline, place = time.monotonic() + wait_s, folder / FOLDER
    try:
        place.mkdir(exist_ok=True)
        while (mine := _claimed(place)) is None:
            if time.monotonic() > deadline:
                raise RefusedInput(f"{folder.resolve().name}: {_whose(place)}; nothing was started")
            time.sleep(POLL_S)
    except OSError as error:
        raise EnvironmentFault(f"cannot write in {place}: {error.strerror}") from error
    try:
        yield
    finally:
        with suppress(FileNotFoundError):  # with the whole folder
            mine.unlink()


def _claimed(place: Path) -> Path | None:
    """Our file; None = another command is in it, or may be."""
    number, holder = owner.newest_in(place)
    if number and (holder is None or owner.lives(holder) is not False):
        return None
    mine = place / f"{number + 1:06d}"
    return mine if write_first(mine, owner.this_process().to_line()) else None


def _whose(place: Path) -> str:
    number, holder = owner.newest_in(place)
    by_hand = f"if no other command is starting it, remove the folder {place}"
    if number and holder is None:
        return f"the newest record in {FOLDER}/ cannot be read ({by_hand})"
    if holder is None:
        return "another command has just started it"
    whom = f"another command (process {holder.pid} on {holder.host})"
    if owner.lives(holder) is None:
        return f"{whom} was starting it and cannot be seen from this machine ({by_hand})"
    return f"{whom} is starting it just now"
