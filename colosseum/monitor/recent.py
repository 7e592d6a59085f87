"""The newest rows of a run, read from the ends of its files: what a live page needs, at a cost that does not grow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colosseum.monitor.predicted import Predicted, read_predicted
from colosseum.reading import Unreadable, tail
from colosseum.records import MetricsRow, number, parse_object, text, whole
from colosseum.rundir import RunDir

METRICS_BYTES = 1 << 18
"""Of metrics.jsonl: some hundred steps."""
OTHER_BYTES = 1 << 14
EVENTS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """What the ends of a run's files say."""

    train: tuple[dict[str, Any], ...]
    """Rows of the newest steps, oldest first."""
    validation_loss: float | None
    events: tuple[MetricsRow, ...]
    """Newest first."""
    tokens_by_source: dict[str, float]
    predicted: Predicted

    def last(self, name: str) -> float | None:
        """A figure of the newest step."""
        return number(self.train[-1].get(name)) if self.train else None

    def split_s(self) -> dict[str, float]:
        """The newest step's seconds: data, forward and backward, optimizer, and the rest of it."""
        whole_s = self.last("step_time_s")
        if whole_s is None:
            return {}
        data = self.last("data_time_s") or 0.0
        both, optimizer = self.last("forward_backward_time_s") or 0.0, self.last("optimizer_time_s") or 0.0
        # Waiting for data is a part of the forward and backward pass.
        known = {"data": data, "forward, backward": max(0.0, both - data), "optimizer": optimizer}
        return {**known, "other": max(0.0, whole_s - data - known["forward, backward"] - optimizer)}


def read_recent(run: RunDir) -> Recent:
    """Reads the ends of metrics.jsonl, events.jsonl and ledger.jsonl; what is missing or damaged is empty."""
    rows = _rows(run.metrics, METRICS_BYTES)
    losses = [number(row.get("loss")) for row in rows if row.get("kind") == "val"]
    ledger = [row["tokens_by_source"] for row in _rows(run.ledger, OTHER_BYTES) if _is_mix(row)]
    mix = {text(name, 100): number(count) or 0.0 for name, count in ledger[-1].items()} if ledger else {}
    events = [event for row in _rows(run.events, OTHER_BYTES) if (event := MetricsRow.from_data(row)) is not None]
    return Recent(
        train=_newest_of_each_step([row for row in rows if row.get("kind") == "train"]),
        validation_loss=losses[-1] if losses else None,
        events=tuple(reversed(events[-EVENTS:])),
        tokens_by_source=mix,
        predicted=read_predicted(run),
    )


def _newest_of_each_step(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Steps repeat after a restart and a rewind: a row counts if no later one has its step or a lower one."""
    kept: list[dict[str, Any]] = []
    for row in reversed(rows):
        step = whole(row.get("step"))
        if step is not None and (not kept or step < kept[-1]["step"]):
            kept.append(row)
    return tuple(reversed(kept))


def _is_mix(row: dict[str, Any]) -> bool:
    return isinstance(row.get("tokens_by_source"), dict)


def _rows(path: Path, limit: int) -> list[dict[str, Any]]:
    try:
        found = (parse_object(line) for line in tail(path, limit))
    except Unreadable:
        return []
    return [row for row in found if row is not None]
