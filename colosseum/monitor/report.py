"""What a run's metrics say, in a few figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from colosseum.errors import RefusedInput
from colosseum.monitor.plot import Curve
from colosseum.rundir import RunDir, latest_rows

AVERAGED_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Loss and speed of one run; losses in nats a token."""

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
        RefusedInput: the run has no training step yet.
    """
    rows = latest_rows(run.metrics, "train")
    if not rows:
        raise RefusedInput(f"{run.root} has no training step yet")
    losses = [row["loss"] for row in rows if row.get("loss") is not None]
    validation = latest_rows(run.metrics, "val")
    return RunSummary(
        run=run,
        first_step=rows[0]["step"],
        last_step=rows[-1]["step"],
        first_loss=losses[0],
        last_loss=statistics.fmean(losses[-AVERAGED_STEPS:]),
        last_validation_loss=validation[-1]["loss"] if validation else None,
        tokens=rows[-1]["consumed_tokens"],
        tokens_per_s=statistics.median(row["tokens_per_s"] for row in rows),
        saves=len(latest_rows(run.metrics, "save")),
        training=_curve("training", rows),
        validation=_curve("validation", validation, marker="●") if validation else None,
    )


def _curve(name: str, rows: Sequence[dict[str, Any]], marker: str = "") -> Curve:
    known = [(row["step"], row["loss"]) for row in rows if row.get("loss") is not None]
    return Curve(name=name, steps=[s for s, _ in known], values=[v for _, v in known], marker=marker)
