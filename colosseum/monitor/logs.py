"""Logs of the jobs and ranks of a run: existing lines, and new ones as they come."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from colosseum.reading import Unreadable, open_regular
from colosseum.rundir import RunDir

READ_BYTES = 1 << 20
POLL_S = 1.0
ASK_EVERY_S = 10.0
TAIL_BYTES, TAIL_BYTES_A_LINE = 1 << 22, 1 << 10
"""Last lines are looked for in so much of a file's end, or in so much for each of them."""


def log_files(run: RunDir, rank: int, attempt: int | None) -> list[Path]:
    """The newest job's log, and one rank's of an attempt (None = the newest); of torchrun, the log of its node.

    Only files that are there.
    """
    jobs = sorted(run.logs.glob("job-*.out"), key=_changed)[-1:]
    numbers = run.attempt_numbers()
    number = attempt if attempt is not None else (numbers[-1] if numbers else None)
    if number is None:
        return jobs
    folder = run.attempt(number)
    node = folder.root / f"node-{rank:05d}.log"
    own = next((p for p in (folder.rank_log(rank), node) if p.exists()), None)
    return jobs + ([own] if own else [])


class Reader:
    """Reads what is new in a set of files, a file at a time."""

    def __init__(self, last_lines: int | None) -> None:
        """``last_lines``: of what a file holds at first, only so many (None = all)."""
        self._last_lines = last_lines
        self._offsets: dict[Path, int] = {}
        self._passed_over: set[Path] = set()

    def new(self, files: list[Path]) -> Iterator[tuple[Path, str]]:
        """Each file that has new text, with that text. A file that appears later is read from its beginning.

        Of one that cannot be read the text is a sentence that says so, once.
        """
        first_look = not self._offsets
        for path in files:
            try:
                if path not in self._offsets:
                    self._offsets[path] = 0
                    if first_look and self._last_lines is not None:
                        self._offsets[path] = _offset_of_last(path, self._last_lines)
                with open_regular(path) as file:
                    file.seek(self._offsets[path])
                    while data := file.read(READ_BYTES):
                        self._offsets[path] += len(data)
                        yield path, data.decode(errors="replace")
            except FileNotFoundError:
                continue
            except Unreadable as error:
                if path not in self._passed_over:
                    self._passed_over.add(path)
                    yield path, f"({error})\n"


def read_logs(
    run: RunDir, rank: int, attempt: int | None, last_lines: int, *, ended_if: Callable[[RunDir], bool] | None
) -> Iterator[str]:
    """The logs of the job and of one rank, each headed by its name.

    Args:
        attempt: of the rank; None = the newest.
        last_lines: of each file that is there at first.
        ended_if: says whether the run has ended: until then new lines follow; None = only what is there now.
    """
    reader, shown, asked_s = Reader(last_lines), None, time.monotonic()
    last_look = ended_if is None
    while True:
        for path, text in reader.new(log_files(run, rank, attempt)):
            if path != shown:
                yield f"==> {path.relative_to(run.root)}\n"
                shown = path
            yield text
        if last_look:
            return
        if ended_if is not None and time.monotonic() - asked_s >= ASK_EVERY_S:
            last_look, asked_s = ended_if(run), time.monotonic()
        else:
            time.sleep(POLL_S)


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log, without their ends; empty if there are none to read."""
    try:
        start = _offset_of_last(path, count)
        with open_regular(path) as file:
            file.seek(start)
            return file.read(READ_BYTES).decode(errors="replace").splitlines()[:count]
    except (FileNotFoundError, Unreadable):
        return []


def _offset_of_last(path: Path, lines: int) -> int:
    """Where the last ``lines`` lines begin; the file's end for 0. Looks at a bounded part."""
    with open_regular(path) as file:
        end = at = file.seek(0, os.SEEK_END)
        if not lines:
            return end
        missing = lines + 1  # the end of the line before them
        while at > max(0, end - max(TAIL_BYTES, lines * TAIL_BYTES_A_LINE)):
            size = min(READ_BYTES, at)
            at -= size
            file.seek(at)
            block = file.read(size)
            if at + size == end and not block.endswith(b"\n"):
                missing -= 1  # the last line has no end yet
            found = block.count(b"\n")
            if found < missing:
                missing -= found
                continue
            place = len(block)
            for _ in range(missing):
                place = block.rfind(b"\n", 0, place)
            return at + place + 1
        return at


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
