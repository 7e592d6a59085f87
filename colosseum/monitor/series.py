"""metrics.jsonl of a long run as columns: a million lines in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json

from colosseum.reading import MAX_LINE, Unreadable, open_regular
from colosseum.records import number, parse_object, whole

Column = npt.NDArray[np.float64]
COLUMNS = (
    *("step", "attempt", "time_unix_s", "loss", "lr", "grad_norm", "consumed_tokens", "step_time_s", "data_time_s"),
    *("forward_backward_time_s", "optimizer_time_s", "tokens_per_s", "mfu", "slowest_rank_s", "median_rank_s"),
)
"""Of the training rows, in base units; what a row lacks is NaN."""
_BLOCK = 1 << 23
_MEMORY_EVERY = 100
"""Peaks of memory only grow within an attempt: they are read from one row in so many, and from the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The rows of one run in the order in which they were written."""

    train: dict[str, Column]
    """By the names in COLUMNS, all of one length."""
    other: list[dict[str, Any]]
    """Rows of validations, saves and loads."""
    memory_peak_bytes: list[float]
    """The highest of each pipeline stage."""

    def kept(self) -> npt.NDArray[np.bool_]:
        """Which training rows count: no later row has the same or a lower step."""
        steps = self.train["step"]
        if not steps.size:
            return np.zeros(0, dtype=bool)
        later = np.append(np.minimum.accumulate(steps[::-1])[::-1][1:], np.inf)
        return np.asarray(later > steps)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Rows of ``other`` of one kind."""
        return [row for row in self.other if row.get("kind") == kind]


def read_metrics(path: Path) -> Metrics:
    """Reads the whole file; truncated and invalid lines are skipped, a missing or unreadable file is empty."""
    parts: dict[str, list[Column]] = {name: [] for name in COLUMNS}
    other: list[dict[str, Any]] = []
    peaks: list[float] = []
    for rows in _blocks(path):
        train = [row for row in rows if row.get("kind") == "train" and whole(row.get("step")) is not None]
        other += [row for row in rows if row.get("kind") != "train" and whole(row.get("step")) is not None]
        for name in COLUMNS:
            parts[name].append(_column([row.get(name) for row in train]))
        for row in [*train[::_MEMORY_EVERY], *train[-1:]]:
            peaks = _higher(peaks, row.get("memory_peak_bytes"))
    columns = {name: np.concatenate(found) if found else np.zeros(0) for name, found in parts.items()}
    columns["attempt"] = np.nan_to_num(columns["attempt"])
    return Metrics(train=columns, other=other, memory_peak_bytes=peaks)


def _blocks(path: Path) -> Iterator[list[dict[str, Any]]]:
    """The JSON objects of the file's lines, some thousand at a time."""
    try:
        with open_regular(path) as file:
            rest = b""
            while data := file.read(_BLOCK):
                complete, newline, rest = (rest + data).rpartition(b"\n")
                if newline:
                    yield _objects(complete)
                elif len(rest) > MAX_LINE:
                    rest = b""  # no line of ours; its end is no JSON either
            if rest:
                yield _objects(rest)
    except (FileNotFoundError, Unreadable, OSError):
        return


def _objects(lines: bytes) -> list[dict[str, Any]]:
    """Whole lines at once, which is much quicker; one by one if any of them is invalid."""
    try:
        found = from_json(b"[" + lines.replace(b"\n", b",") + b"]", cache_strings="keys")
    except ValueError:
        found = [parse_object(line) for line in lines.split(b"\n")]
    return [row for row in found if isinstance(row, dict)]


def _column(values: Sequence[Any]) -> Column:
    try:
        column = np.array(values, dtype=np.float64)
        if column.ndim == 1:
            column[~np.isfinite(column)] = np.nan
            return column
    except (TypeError, ValueError, OverflowError):
        pass
    return np.array([np.nan if (figure := number(value)) is None else figure for value in values])


def _higher(peaks: list[float], row: Any) -> list[float]:
    """The higher of each stage's two figures."""
    if not isinstance(row, list):
        return peaks
    found = [number(value) or 0.0 for value in row[:4096]]
    count = max(len(peaks), len(found))
    padded = [(values + [0.0] * count)[:count] for values in (peaks, found)]
    return [max(pair) for pair in zip(*padded, strict=True)]
