"""What was measured in, what to do out; the loop obeys. Nothing changes here but what the watch remembers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from colosseum.runtime.stability.detect import LossWatch

Mode = Literal["off", "watch", "act"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One optimizer step."""

    step: int
    loss: float
    grad_norm: float
    first_sample: int
    last_sample: int
    where: str = ""
    """Which gradients are not finite, where loss or gradient norm is not."""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line of events.jsonl."""

    kind: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Continue:
    """Train on."""

    event: Event | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the run; its state is not worth saving."""

    reason: str
    event: Event


def decide(mode: Mode, watch: LossWatch, measured: Measured) -> Continue | Stop:
    """What ``stability.mode`` says of a step; ``watch`` remembers the losses before it."""
    if mode == "off":
        return Continue()
    if measured.finite:
        spike = watch.update(measured.step, measured.loss)
        if spike is None:
            return Continue()
        fields = {"loss": measured.loss, "expected": spike.expected, "limit": spike.limit}
        return Continue(event=Event(kind="loss_spike", fields=fields))
    event = Event(
        kind="not_finite",
        fields={"loss": measured.loss, "grad_norm": measured.grad_norm, "where": measured.where},
    )
    if mode == "watch":
        return Continue(event=event)
    what = "gradient norm" if math.isfinite(measured.loss) else "loss"
    samples = f"samples {measured.first_sample} to {measured.last_sample}"
    reason = f"the {what} of step {measured.step} is not finite ({samples}); {measured.where}"
    return Stop(reason=reason, event=event)
