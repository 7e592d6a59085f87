"""What the plan in a run's bundle predicts, for those who compare it with what is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from colosseum.bundle import PLAN
from colosseum.reading import Unreadable, read_object
from colosseum.records import number
from colosseum.rundir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the plan predicts; None = it does not say."""

    step_time_s: float | None
    step_time_range_s: tuple[float, float] | None
    mfu: float | None
    goodput: float | None
    usable_bytes: float | None
    stage_bytes: tuple[float, ...]
    """Peak of each pipeline stage as the run measures it: without context and NCCL."""

    @property
    def mfu_range(self) -> tuple[float, float] | None:
        """MFU is inverse to the step time, whose range the plan has."""
        reach, step = self.step_time_range_s, self.step_time_s
        if self.mfu is None:
            return None
        return (self.mfu * step / reach[1], self.mfu * step / reach[0]) if reach and step else (self.mfu, self.mfu)


def read_predicted(run: RunDir) -> Predicted:
    """Of the run's plan.json; a plan that is missing or damaged predicts nothing."""
    try:
        plan = read_object(run.bundle / PLAN)
    except (FileNotFoundError, Unreadable):
        plan = {}

    def of(section: str, name: str) -> Any:
        found = plan.get(section)
        return found.get(name) if isinstance(found, dict) else None

    reach = plan.get("step_time_range_s")
    ends = [number(end) for end in reach] if isinstance(reach, list) and len(reach) == 2 else []
    stages = of("memory", "stages")
    kept = [stage for stage in stages[:4096] if isinstance(stage, dict)] if isinstance(stages, list) else []
    totals = [(number(s.get("total_bytes")) or 0.0) - (number(s.get("context_bytes")) or 0.0) for s in kept]
    low, high = (ends[0], ends[1]) if len(ends) == 2 else (None, None)
    return Predicted(
        step_time_s=number(plan.get("step_time_s")),
        step_time_range_s=(low, high) if low and high and low > 0 else None,
        mfu=number(of("mfu", "causal")),
        goodput=number(of("storage", "goodput")),
        usable_bytes=number(of("memory", "usable_bytes")),
        stage_bytes=tuple(totals),
    )
