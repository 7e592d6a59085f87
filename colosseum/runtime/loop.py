"""The training loop: steps, what is measured of them, validation, checkpoints, and the reasons to leave."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from colosseum.monitor.progress import progress_line
from colosseum.planning.flops import Shape, model_flops_per_token
from colosseum.recipe.schema import Recipe
from colosseum.runtime import device, stability, steps
from colosseum.runtime.data import Samples
from colosseum.runtime.failures import NumericFailure
from colosseum.runtime.metrics import MetricsWriter
from colosseum.runtime.saving import Saver, State, Training
from colosseum.runtime.stopping import StopSignal
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
    predicted_step_s: float | None = None

    @property
    def recipe(self) -> Recipe:
        return self.training.recipe


@dataclass(slots=True)
class StepFacts:
    """Seconds of one step, and the learning rate it was made with."""

    step_s: float
    data_s: float
    forward_backward_s: float
    optimizer_s: float
    lr: float


def run(loop: Loop) -> bool:
    """Trains to the last step or until any rank was asked to stop; True if it was. The state at its end is saved.

    Raises:
        NumericFailure: a loss or gradient norm is not finite and ``stability.mode`` is act.
    """
    recipe, state = loop.recipe, loop.state
    watch = stability.LossWatch()
    stopped = False
    before = device.wall_s()
    while state.step < loop.total_steps and not stopped:
        loop.watchdog.beat(state.step, "training")
        loss, grad_norm, skipped, stopped, facts = _step(loop)
        now = device.wall_s()
        facts.step_s, before = now - before, now
        _check(loop, watch, loss, grad_norm)
        if state.step % recipe.train.log_every_steps == 0:
            _log(loop, loss, grad_norm, skipped, facts)
        ended = state.step == loop.total_steps
        if ended or state.step % recipe.train.val_every_steps == 0:
            _validate(loop)
        if stopped or ended or state.step % recipe.checkpoint.every_steps == 0:
            _save(loop)
        loop.saver.finish(blocking=stopped or ended)
        _report_saves(loop)
        before += device.wall_s() - now  # validation and saving are no part of the next step
    return stopped and state.step < loop.total_steps


def _step(loop: Loop) -> tuple[float, float, bool, bool, StepFacts]:
    """One optimizer step: loss, gradient norm, whether it was skipped, whether to stop after it, and its facts."""
    training, state, recipe = loop.training, loop.state, loop.recipe
    clock = steps.Clock()
    start = device.mark()
    for chunk in training.model:
        chunk.zero_grad_buffer()
    training.optimizer.zero_grad()
    total = steps.forward_backward(
        recipe, training.model, loop.train, state.consumed_samples, forward_only=False, clock=clock
    )
    if state.step == 0 or (state.step + 1) % DEAD_CHECK_STEPS == 0:
        _report_dead(loop)
    middle = device.mark()
    updated, grad_norm, _ = training.optimizer.step()
    end = device.mark()
    # One reduction tells every rank the loss and whether any of them was asked to stop.
    stop = float(loop.stop.after(state.step + 1))
    shared = torch.cat([total, torch.tensor([stop], dtype=total.dtype, device=total.device)])
    dist.all_reduce(shared)
    lr = float(training.optimizer.param_groups[0]["lr"])
    if updated:
        training.schedule.step(increment=recipe.batch.gbs)
    state.advance(recipe.batch.gbs, recipe.batch.seq_length)
    facts = StepFacts(
        step_s=0.0,
        data_s=clock.data_s,
        forward_backward_s=device.seconds_between(start, middle),
        optimizer_s=device.seconds_between(middle, end),
        lr=lr,
    )
    return steps.mean_loss(shared), float(grad_norm or 0.0), not updated, bool(shared[2] > 0), facts


def _check(loop: Loop, watch: stability.LossWatch, loss: float, grad_norm: float) -> None:
    """Non-finite figures and spikes, as ``stability.mode`` says."""
    mode, step = loop.recipe.stability.mode, loop.state.step
    if mode == "off":
        return
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        what = "loss" if not math.isfinite(loss) else "gradient norm"
        where = _where_not_finite(loop)
        samples = f"samples {loop.state.consumed_samples - loop.recipe.batch.gbs} to {loop.state.consumed_samples - 1}"
        sentence = f"the {what} of step {step} is not finite ({samples}); {where}"
        if loop.writer:
            loop.writer.event("not_finite", step, loss=loss, grad_norm=grad_norm, where=where)
        if mode == "act":
            raise NumericFailure(sentence)
        return
    if (spike := watch.update(step, loss)) and loop.writer:
        loop.writer.event("loss_spike", step, loss=loss, expected=spike.expected, limit=spike.limit)


def _where_not_finite(loop: Loop) -> str:
    """The first parameters whose gradients are broken, and the rank that has them."""
    mine = stability.nonfinite_gradients(loop.training.model)
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
    mine = stability.dead_gradients(loop.training.model, group)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    names = sorted({name for names in everyone for name in names})
    if names and loop.writer:
        loop.writer.event("dead_gradients", loop.state.step + 1, parameters=names[:20], count=len(names))


def _log(loop: Loop, loss: float, grad_norm: float, skipped: bool, facts: StepFacts) -> None:
    recipe, state = loop.recipe, loop.state
    memory = _memory_by_stage(recipe)
    if loop.writer is None:
        return
    tokens = recipe.batch.gbs * recipe.batch.seq_length
    tokens_per_s = tokens / facts.step_s
    shape = Shape.of(recipe.model, recipe.batch.seq_length)
    per_token = model_flops_per_token(shape, recipe.batch.seq_length, causal=True)
    flops = tokens_per_s * per_token / recipe.resources.gpus
    row = loop.writer.row(
        "train",
        state.step,
        loss=loss,
        lr=facts.lr,
        grad_norm=grad_norm,
        consumed_samples=state.consumed_samples,
        consumed_tokens=state.consumed_tokens,
        step_time_s=facts.step_s,
        predicted_step_time_s=loop.predicted_step_s,
        data_time_s=facts.data_s,
        forward_backward_time_s=facts.forward_backward_s,
        optimizer_time_s=facts.optimizer_s,
        tokens_per_s=tokens_per_s,
        model_tflops_per_gpu=flops / 1e12,
        # The peak of a CPU file is a round figure: a share of it would mean nothing.
        mfu=flops / recipe.hardware.peak_flops.bf16 if device.is_cuda() else None,
        memory_peak_bytes=memory,
        skipped=skipped,
    )
    _say(progress_line(row))


def _memory_by_stage(recipe: Recipe) -> list[int]:
    """The most bytes that any rank of each pipeline stage had."""
    peaks = torch.zeros(int(recipe.parallelism.pp), dtype=torch.int64, device=device.current())
    peaks[parallel_state.get_pipeline_model_parallel_rank()] = device.peak_memory_bytes()
    dist.all_reduce(peaks, op=dist.ReduceOp.MAX)
    return [int(peak) for peak in peaks]


def _validate(loop: Loop) -> None:
    if loop.validation is None:
        return
    loop.watchdog.beat(loop.state.step, "validating")
    start = device.wall_s()
    loss = steps.validate(loop.recipe, loop.training.model, loop.validation)
    if loop.writer:
        count = loop.recipe.train.val_steps * loop.recipe.batch.gbs
        row = loop.writer.row("val", loop.state.step, loss=loss, samples=count, time_s=device.wall_s() - start)
        _say(progress_line(row))


def _save(loop: Loop) -> None:
    loop.watchdog.beat(loop.state.step, "saving")
    loop.state.count(loop.train, loop.recipe.batch.seq_length)
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
