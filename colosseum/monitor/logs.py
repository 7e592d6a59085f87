"""What the jobs and ranks of a run have said, and what they go on saying."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from colosseum.rundir import RunDir

READ_BYTES = 1 << 20


def log_files(run: RunDir, rank: int, attempt: int | None) -> list[Path]:
    """The newest job's log, and one rank's of an attempt (None = the newest); of torchrun, the log of its node.

    Only files that are there.
    """
    jobs = sorted(run.logs.glob("job-*.out"), key=lambda p: p.stat().st_mtime)[-1:]
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

    def new(self, files: list[Path]) -> Iterator[tuple[Path, str]]:
        """Each file that has new text, with that text. A file that appears later is read from its beginning."""
        first_look = not self._offsets
        for path in files:
            try:
                if path not in self._offsets:
                    self._offsets[path] = 0
                    if first_look and self._last_lines is not None:
                        self._offsets[path] = _offset_of_last(path, self._last_lines)
                with path.open("rb") as file:
                    file.seek(self._offsets[path])
                    while data := file.read(READ_BYTES):
                        self._offsets[path] += len(data)
                        yield path, data.decode(errors="replace")
            except FileNotFoundError:
                continue


def _offset_of_last(path: Path, lines: int) -> int:
    with path.open("rb") as file:
        kept = deque(file, maxlen=lines)
        return file.tell() - sum(map(len, kept))
