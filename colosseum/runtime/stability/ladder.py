"""What was measured in, what to do out: pure functions that the loop obeys.

What ``stability.mode: act`` does, in this order: skip the batch; go back to the newest checkpoint and train on with a
lower learning rate; say with which wider precision to start a fork of the run. Each is limited in number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from colosseum.checkpoint.metadata import LossHistory
from colosseum.recipe.schema import Precision, Stability
from colosseum.runtime.stability.detect import ENOUGH, WINDOW, Spike, loss_spike, norm_spike

SKIP_WINDOW = 100
"""Steps in which ``stability.max_skips`` batches may be skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One optimizer step, before the optimizer changes the weights."""

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
    """Let the optimizer update the weights."""

    event: Event | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Leave the weights as they are; the batch counts as read."""

    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """Go back to the newest checkpoint."""

    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the run; its state is not worth saving."""

    reason: str
    event: Event


Action = Continue | Skip | Rewind | Stop


@dataclass(slots=True)
class Memory:
    """What a decision rests on besides the step itself; in every checkpoint, so that a resumed run decides alike."""

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    """Steps whose batches were skipped, the last `SKIP_WINDOW` steps."""

    @classmethod
    def of(cls, history: LossHistory | None) -> Memory:
        """What a checkpoint remembers; one of an older release remembers nothing."""
        if history is None:
            return cls()
        return cls(list(history.losses), list(history.grad_norms), list(history.skipped))

    def history(self) -> LossHistory:
        """For the checkpoint."""
        return LossHistory(losses=tuple(self.losses), grad_norms=tuple(self.grad_norms), skipped=tuple(self.skipped))

    def add(self, measured: Measured) -> None:
        """A step without trouble."""
        self.losses = [*self.losses, measured.loss][-WINDOW:]
        self.grad_norms = [*self.grad_norms, measured.grad_norm][-WINDOW:]

    def skip(self, step: int) -> None:
        self.skipped = [s for s in self.skipped if s > step - SKIP_WINDOW] + [step]

    def skips_before(self, step: int) -> int:
        return sum(s > step - SKIP_WINDOW for s in self.skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """One return to a checkpoint: the event ``rewind`` of events.jsonl."""

    from_step: int
    to_step: int
    lr_factor: float
    until_step: int
    """The last step with the lower learning rate."""


def lr_factor(rewinds: Sequence[Rewound], step: int) -> float:
    """What the schedule's learning rate is multiplied by at a step (counted from 1)."""
    return math.prod(r.lr_factor for r in rewinds if r.to_step < step <= r.until_step)


def decide(
    stability: Stability, precision: Precision, memory: Memory, measured: Measured, rewinds: int, *, can_rewind: bool
) -> Action:
    """What ``stability`` says of a step.

    Args:
        memory: of the steps before; the step is added to it.
        rewinds: how often the run went back already.
        can_rewind: it has a checkpoint.
    """
    if stability.mode == "off":
        return Continue()
    event = _trouble(memory, measured)
    if event is None:
        memory.add(measured)
        return Continue()
    if stability.mode == "watch":
        return Continue(event=event)
    healthy_before = len(memory.losses) >= ENOUGH
    if healthy_before and memory.skips_before(measured.step) < stability.max_skips:
        memory.skip(measured.step)
        return Skip(event=event)
    if healthy_before and can_rewind and rewinds < stability.max_rewinds:
        return Rewind(event=event)
    wider = wider_precision(precision)
    event = Event(kind=event.kind, fields={**event.fields, "skips": len(memory.skipped), "rewinds": rewinds})
    if wider:
        event.fields["proposal"] = wider
    if not measured.finite:
        return Stop(reason=_reason(measured, wider if healthy_before else ""), event=event)
    # The loss may have changed for good, with the data: from here on it is compared with itself.
    memory.losses, memory.grad_norms = [], []
    return Continue(event=event)


def _trouble(memory: Memory, measured: Measured) -> Event | None:
    if not measured.finite:
        fields = {"loss": measured.loss, "grad_norm": measured.grad_norm, "where": measured.where}
        return Event(kind="not_finite", fields=fields)
    samples = {"first_sample": measured.first_sample, "last_sample": measured.last_sample}
    if spike := loss_spike(memory.losses, measured.loss):
        return Event(kind="loss_spike", fields={"loss": measured.loss, **_limits(spike), **samples})
    if spike := norm_spike(memory.grad_norms, measured.grad_norm):
        return Event(kind="grad_norm_spike", fields={"grad_norm": measured.grad_norm, **_limits(spike), **samples})
    return None


def _limits(spike: Spike) -> dict[str, float]:
    return {"expected": spike.expected, "limit": spike.limit}


def wider_precision(precision: Precision) -> str:
    """The next wider precision as words for a command line; empty where everything is BF16 or FP32 already.

    More layers in BF16, then weight gradients, then all of it. Delayed scaling has no BF16 layers in megatron-core: it
    moves to tensorwise.
    """
    if precision.fp8 == "none":
        return ""
    if not (precision.bf16_layers.first or precision.bf16_layers.last):
        scaling = "precision.fp8=tensorwise " if precision.fp8 == "delayed" else ""
        return f"{scaling}precision.bf16_layers.first=1 precision.bf16_layers.last=1"
    return "precision.fp8_wgrad=false" if precision.fp8_wgrad else "precision=bf16"


def _reason(measured: Measured, wider: str) -> str:
    what = "gradient norm" if math.isfinite(measured.loss) else "loss"
    samples = f"samples {measured.first_sample} to {measured.last_sample}"
    reason = f"the {what} of step {measured.step} is not finite ({samples}); {measured.where}"
    return reason + (f"; resume from an earlier step with wider precision: --from RUN@STEP {wider}" if wider else "")
