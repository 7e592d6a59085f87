"""A summary of a run's metrics."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from colosseum.errors import RefusedInput
from colosseum.monitor.plot import Curve
from colosseum.records import number, whole
from colosseum.rundir import RunDir, latest_rows

AVERAGED_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Loss and speed of one run; losses in nats per token."""

    run: RunDir
    first_step: int
    last_step: int
    first_loss: float
    last_loss: float
    """Mean of the last ten training steps."""
    last_validation_loss: float | None
    tokens: int
    """Consumed up to the last step, by the runs before it too."""
    tokens_per_s: float
    """Median."""
    saves: int
    training: Curve
    validation: Curve | None


def summarise(run: RunDir) -> RunSummary:
    """Reads metrics.jsonl.

    Raises:
        RefusedInput: the run has no training step with a loss yet.
    """
    rows = latest_rows(run.metrics, "train")
    losses = [loss for row in rows if (loss := number(row.get("loss"))) is not None]
    if not losses:
        raise RefusedInput(f"{run.root} has no training step with a loss yet")
    validation = [row for row in latest_rows(run.metrics, "val") if number(row.get("loss")) is not None]
    speeds = [speed for row in rows if (speed := number(row.get("tokens_per_s"))) is not None]
    return RunSummary(
        run=run,
        first_step=rows[0]["step"],
        last_step=rows[-1]["step"],
        first_loss=losses[0],
        last_loss=statistics.fmean(losses[-AVERAGED_STEPS:]),
        last_validation_loss=validation[-1]["loss"] if validation else None,
        tokens=whole(rows[-1].get("consumed_tokens")) or 0,
        tokens_per_s=statistics.median(speeds) if speeds else 0.0,
        saves=len(latest_rows(run.metrics, "save")),
        training=_curve("training", rows),
        validation=_curve("validation", validation, marker="●") if validation else None,
    )


def _curve(name: str, rows: Sequence[dict[str, Any]], marker: str = "") -> Curve:
    known = [(row["step"], loss) for row in rows if (loss := number(row.get("loss"))) is not None]
    return Curve(name=name, steps=[s for s, _ in known], values=[v for _, v in known], marker=marker)
