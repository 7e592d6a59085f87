"""The training loop: steps, what is measured of them, validation, checkpoints, and the reasons to leave."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from colosseum.monitor.progress import progress_line
from colosseum.planning.flops import Shape, model_flops_per_token
from colosseum.recipe.schema import Recipe
from colosseum.runtime import device, garbage, optimizer, steps
from colosseum.runtime.failures import NumericFailure
from colosseum.runtime.fp8 import training_scan
from colosseum.runtime.metrics import MetricsWriter
from colosseum.runtime.saving import Saver
from colosseum.runtime.stability.detect import dead_gradients, nonfinite_gradients
from colosseum.runtime.stability.ladder import (
    Action,
    Continue,
    Measured,
    Rewind,
    Rewound,
    Skip,
    Stop,
    decide,
    lr_factor,
)
from colosseum.runtime.state import State, Training
from colosseum.runtime.steps import Totals
from colosseum.runtime.stopping import StopSignal
from colosseum.runtime.tasks.base import Samples
from colosseum.runtime.watchdog import Watchdog

DEAD_CHECK_STEPS = 100
"""Gradients that are zero everywhere are looked for at the first step and at each one divisible by this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """All that the loop works with."""

    training: Training
    state: State
    total_steps: int
    train: Samples
    validation: Samples | None
    saver: Saver
    stop: StopSignal
    watchdog: Watchdog
    writer: MetricsWriter | None
    """On rank 0."""
    rewind: Callable[[], State]
    """Loads the newest checkpoint of the run."""
    rewinds: list[Rewound]
    """Of the whole run, earlier attempts too."""
    predicted_step_s: float | None = None

    @property
    def recipe(self) -> Recipe:
        return self.training.recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One optimizer step, the same on every rank but for the seconds."""

    totals: Totals
    grad_norm: float
    action: Action
    """What `stability.ladder` decided; but for Continue the optimizer changed nothing."""
    stop: bool
    """Some rank was asked to save and leave."""
    lr: float
    tokens: int
    computed_tokens: int
    """With padding."""
    data_s: float
    forward_backward_s: float
    optimizer_s: float


def run(loop: Loop) -> bool:
    """Trains to the last step or until any rank was asked to stop; True if it was. The state at its end is saved.

    Raises:
        NumericFailure: a loss or gradient norm is not finite and ``stability.mode`` act has nothing left to do.
    """
    recipe, state = loop.recipe, loop.state
    stopped = False
    before = device.wall_s()
    while state.step < loop.total_steps and not stopped:
        loop.watchdog.beat(state.step, "training")
        result = _step(loop)
        stopped = result.stop
        now = device.wall_s()
        step_s, before = now - before, now
        _report(loop, result)
        if isinstance(result.action, Stop):
            raise NumericFailure(result.action.reason)
        if state.step % recipe.train.log_every_steps == 0:
            _log(loop, result, step_s)
        if isinstance(result.action, Rewind) and not stopped:
            _rewind(loop)
            before = device.wall_s()
            continue
        ended = state.step == loop.total_steps
        saved = stopped or ended or state.step % recipe.checkpoint.every_steps == 0
        # What is due to be saved is saved first: a validation may be long, and a job's time ends in it.
        if saved:
            _save(loop)
        if not stopped and (ended or state.step % recipe.train.val_every_steps == 0):
            stopped = not _validate(loop)
            if stopped and not saved:
                _save(loop)
        loop.saver.finish(blocking=stopped or ended)
        _report_saves(loop)
        garbage.collect_after(state.step)
        before += device.wall_s() - now  # validation and saving are no part of the next step
    return stopped and state.step < loop.total_steps


def _step(loop: Loop) -> StepResult:
    """One optimizer step; the weights change if `stability.ladder` lets them."""
    training, state, recipe = loop.training, loop.state, loop.recipe
    task, gbs, first = training.task, recipe.batch.gbs, state.consumed_samples
    clock = steps.Clock()
    start = device.mark()
    for chunk in training.model:
        chunk.zero_grad_buffer()
    training.optimizer.zero_grad()
    with training_scan.observed_if_due(training, state.step + 1) as seen:
        summed = steps.forward_backward(
            recipe, task, training.model, loop.train, first, forward_only=False, clock=clock
        )
    if seen is not None:
        training_scan.report(recipe, seen, state.step + 1, loop.writer)
    if state.step == 0 or (state.step + 1) % DEAD_CHECK_STEPS == 0:
        _report_dead(loop)
    middle = device.mark()
    # One reduction gives every rank the loss and whether any of them was asked to stop.
    stop = torch.full((1,), float(loop.stop.after(state.step + 1)), dtype=summed.dtype, device=summed.device)
    shared = torch.cat([summed, stop])
    dist.all_reduce(shared)
    totals = steps.total(task, shared[:-1])
    grad_norm = optimizer.ready_norm(training.optimizer)
    action = _decide(loop, totals.loss, grad_norm)
    optimizer.scale_rates(training.optimizer, lr_factor(loop.rewinds, state.step + 1))
    lr = float(training.optimizer.param_groups[0]["lr"])
    if isinstance(action, Continue):
        training.clip(grad_norm)
        training.optimizer.step_with_ready_grads()
    end = device.mark()
    training.schedule.step(increment=gbs)
    tokens = loop.train.tokens(first, first + gbs)
    state.advance(gbs, tokens)
    return StepResult(
        totals=totals,
        grad_norm=grad_norm,
        action=action,
        stop=bool(shared[-1] > 0),
        lr=lr,
        tokens=tokens,
        computed_tokens=clock.computed_tokens,
        data_s=clock.data_s,
        forward_backward_s=device.seconds_between(start, middle),
        optimizer_s=device.seconds_between(middle, end),
    )


def _decide(loop: Loop, loss: float, grad_norm: float) -> Action:
    """What `stability.ladder` says of the step whose gradients are ready: the same on every rank."""
    recipe, state = loop.recipe, loop.state
    first = state.consumed_samples
    last = first + recipe.batch.gbs - 1
    measured = Measured(step=state.step + 1, loss=loss, grad_norm=grad_norm, first_sample=first, last_sample=last)
    if recipe.stability.mode != "off" and not measured.finite:
        measured = replace(measured, where=_where_not_finite(loop))
    return decide(
        recipe.stability,
        recipe.precision,
        state.memory,
        measured,
        len(loop.rewinds),
        can_rewind=loop.saver.last_saved_step is not None,
    )


def _report(loop: Loop, result: StepResult) -> None:
    """Events of a step: what the task noticed, and what was decided."""
    noticed = loop.training.task.notice(loop.training.task.metrics(result.totals.sums))
    action = result.action
    for event in (noticed, action.event):
        if loop.writer and event:
            loop.writer.event(event.kind, loop.state.step, **event.fields)
    if isinstance(action, Skip) and loop.writer:
        loop.writer.event("batch_skipped", loop.state.step, because=action.event.kind)
        _say(f"step {loop.state.step}: batch skipped ({action.event.kind})")


def _rewind(loop: Loop) -> None:
    """Back to the newest checkpoint, with a lower learning rate from there on."""
    loop.watchdog.beat(loop.state.step, "rewinding")
    loop.saver.finish(blocking=True)
    from_step, stability = loop.state.step, loop.recipe.stability
    loaded = loop.rewind()
    for field in fields(State):
        setattr(loop.state, field.name, getattr(loaded, field.name))
    rewound = Rewound(
        from_step=from_step,
        to_step=loaded.step,
        lr_factor=stability.rewind_lr_factor,
        until_step=from_step + stability.rewind_lr_steps,
    )
    loop.rewinds.append(rewound)
    if loop.writer:
        loop.writer.event("rewind", from_step, **asdict(rewound))
        _say(f"step {from_step}: back to step {loaded.step}, learning rate x {rewound.lr_factor:g} for a while")


def _where_not_finite(loop: Loop) -> str:
    """The first parameters whose gradients are broken, and the rank that has them."""
    mine = nonfinite_gradients(loop.training.model)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine[:3])
    found = [(rank, names) for rank, names in enumerate(everyone) if names]
    if not found:
        return "every gradient is finite"
    rank, names = found[0]
    return f"gradients not finite on rank {rank}: {', '.join(names)}"


def _report_dead(loop: Loop) -> None:
    """Parameters that no sample of the step gave a gradient."""
    if loop.recipe.stability.mode == "off":
        return
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    mine = dead_gradients(loop.training.model, group)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    names = sorted({name for names in everyone for name in names})
    if names and loop.writer:
        loop.writer.event("dead_gradients", loop.state.step + 1, parameters=names[:20], count=len(names))


def _log(loop: Loop, result: StepResult, step_s: float) -> None:
    recipe, state = loop.recipe, loop.state
    memory = _memory_by_stage(recipe)
    if loop.writer is None:
        return
    tokens_per_s = result.tokens / step_s
    shape = Shape.of(recipe.model, recipe.batch.seq_length)
    per_token = model_flops_per_token(shape, recipe.batch.seq_length, causal=True)
    if recipe.lora is not None:
        per_token *= 2 / 3  # no gradients of frozen weights
    flops = tokens_per_s * per_token / recipe.resources.gpus
    row = loop.writer.row(
        "train",
        state.step,
        loss=result.totals.loss,
        lr=result.lr,
        grad_norm=result.grad_norm,
        consumed_samples=state.consumed_samples,
        consumed_tokens=state.consumed_tokens,
        step_time_s=step_s,
        predicted_step_time_s=loop.predicted_step_s,
        data_time_s=result.data_s,
        forward_backward_time_s=result.forward_backward_s,
        optimizer_time_s=result.optimizer_s,
        tokens_per_s=tokens_per_s,
        padding_share=1 - result.tokens / result.computed_tokens,
        model_tflops_per_gpu=flops / 1e12,
        # The peak of a CPU file is a round figure: a share of it would mean nothing.
        mfu=flops / recipe.hardware.peak_flops.bf16 if device.is_cuda() else None,
        memory_peak_bytes=memory,
        skipped=not isinstance(result.action, Continue),
        **loop.training.task.metrics(result.totals.sums),
    )
    _say(progress_line(row))


def _memory_by_stage(recipe: Recipe) -> list[int]:
    """The most bytes that any rank of each pipeline stage had."""
    peaks = torch.zeros(int(recipe.parallelism.pp), dtype=torch.int64, device=device.current())
    peaks[parallel_state.get_pipeline_model_parallel_rank()] = device.peak_memory_bytes()
    dist.all_reduce(peaks, op=dist.ReduceOp.MAX)
    return [int(peak) for peak in peaks]


def _validate(loop: Loop) -> bool:
    """False if any rank was asked to stop before the end: then nothing is written of it."""
    if loop.validation is None:
        return True
    task, step = loop.training.task, loop.state.step

    def go_on() -> bool:
        loop.watchdog.beat(step, "validating")
        stop = torch.full((1,), float(loop.stop.received), device=device.current())
        dist.all_reduce(stop)
        return not bool(stop > 0)

    start = device.wall_s()
    totals = steps.validate(loop.recipe, task, loop.training.model, loop.validation, go_on)
    if totals is None:
        if loop.writer:
            loop.writer.event("validation_stopped", step, reason="stop requested")
        return False
    if loop.writer:
        count = loop.recipe.train.val_steps * loop.recipe.batch.gbs
        figures = {"loss": totals.loss, "samples": count, "time_s": device.wall_s() - start}
        _say(progress_line(loop.writer.row("val", step, **figures, **task.metrics(totals.sums))))
    return True


def _save(loop: Loop) -> None:
    loop.watchdog.beat(loop.state.step, "saving")
    loop.state.count(loop.train)
    loop.saver.save(loop.training, loop.state)
    if loop.writer:
        loop.writer.ledger(loop.state.step, loop.state.consumed_samples, dict(loop.state.tokens_by_source))


def _report_saves(loop: Loop) -> None:
    for step, time_s, size in loop.saver.done:
        if loop.writer:
            _say(progress_line(loop.writer.row("save", step, time_s=time_s, bytes=size)))
    loop.saver.done.clear()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
