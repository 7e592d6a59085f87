"""Rewards that a preference file gives to its answers: ``chosen_reward`` and ``rejected_reward`` of a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from colosseum.data.align.jsonl import BadRow, read_lines
from colosseum.errors import Fault, RefusedInput

KEYS = ("chosen_reward", "rejected_reward")


def reward_differences(file: Path, rows: Sequence[int]) -> npt.NDArray[np.float64]:
    """``[samples]``: the chosen answer's reward minus the rejected one's.

    Args:
        rows: 1-based line of the file of each sample, ascending.

    Raises:
        RefusedInput: a row does not have both as finite numbers; the first of these is named.
    """
    wanted, found = iter(rows), []
    next_row = next(wanted, None)
    for line in read_lines(file):
        if line.number != next_row:
            continue
        found.append(_difference(file, line.number, line.content))
        next_row = next(wanted, None)
    if next_row is not None:
        raise RefusedInput(f"{file} changed while it was read; start again")
    return np.array(found, np.float64)


def _difference(file: Path, number: int, row: dict[str, Any] | BadRow) -> float:
    values = [None if isinstance(row, BadRow) else row.get(key) for key in KEYS]
    for key, value in zip(KEYS, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            rule = f"task.loss rpo_* compares with rewards: {key} must be a finite number"
            raise RefusedInput([Fault(path="", value=value, rule=rule, where=f"{file}:{number}")])
    chosen, rejected = map(float, values)  # type: ignore[arg-type]
    return chosen - rejected


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False
