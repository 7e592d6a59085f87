"""Compares the runs of a sweep: the status of each, best first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from colosseum.launch.runs.jobs import Job, jobs_of
from colosseum.launch.trials.sweep import Point, Sweep
from colosseum.monitor.watch import UNKNOWN, last_val_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The status of one point of a sweep."""

    index: int
    point: Point
    job: Job | None
    """None: it was not started yet."""
    val_loss: float | None

    gone: bool = False
    """Its run folder was deleted."""

    @property
    def word(self) -> str:
        if self.job is None:
            return "gone" if self.gone else "planned"
        return self.job.word

    @property
    def why(self) -> str:
        if self.gone:
            return "its run folder was deleted"
        return self.job.why if self.job else ""

    @property
    def loss(self) -> float | None:
        return None if self.job is None else self.job.status.loss

    def as_json(self, sweep: Sweep) -> dict[str, Any]:
        at = self.job.status if self.job else UNKNOWN
        return {
            "index": self.index,
            "values": dict(self.point.values),
            "run": str(sweep.run_of(self.point).root),
            "job_id": self.job.submission.job_id if self.job else None,
            "state": self.word,
            "reason": self.why,
            "step": at.step,
            "total_steps": at.total_steps,
            "loss": self.loss,
            "val_loss": self.val_loss,
            "mfu": at.mfu,
        }


def compared(sweep: Sweep) -> tuple[list[Row], list[str]]:
    """Each point's newest job, and warnings; the scheduler is asked once."""
    runs = [sweep.run_of(point) for point in sweep.points]
    jobs, warnings = jobs_of([run for run in runs if run.root.is_dir()])
    by_run = {job.run.root.name: job for job in jobs}
    rows = [
        Row(
            index=i,
            point=point,
            job=by_run.get(point.run),
            val_loss=last_val_loss(run),
            gone=not run.root.is_dir(),
        )
        for i, (point, run) in enumerate(zip(sweep.points, runs, strict=True))
    ]
    return best_first(rows), warnings


def best_first(rows: Sequence[Row]) -> list[Row]:
    """By validation loss; those without one after those with one, by training loss; then as they were written."""

    def key(row: Row) -> tuple[float, float, int]:
        val_loss, loss = (math.inf if x is None or math.isnan(x) else x for x in (row.val_loss, row.loss))
        return val_loss, loss, row.index

    return sorted(rows, key=key)
