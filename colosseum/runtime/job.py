"""One rank of one attempt: from a bundle to its outcome and exit code."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from colosseum.bundle import read_bundle
from colosseum.checkpoint import folders
from colosseum.recipe import derived
from colosseum.recipe.schema import Recipe
from colosseum.rundir import AttemptDir, OutcomeKind, RunDir
from colosseum.runtime import (
    by_hand,
    fused_step,
    garbage,
    loop,
    model,
    optimizer,
    parallel,
    reading,
    saving,
    userbuffers,
)
from colosseum.runtime.begin import begin, rewind, rewinds, setup
from colosseum.runtime.failures import ConfigFailure, exit_code, judge
from colosseum.runtime.metrics import MetricsWriter
from colosseum.runtime.probe import probe
from colosseum.runtime.state import State, Training
from colosseum.runtime.stopping import StopSignal
from colosseum.runtime.tasks import task_of
from colosseum.runtime.tasks.base import Samples
from colosseum.runtime.watchdog import Watchdog
from colosseum.units import parse_duration_s

ROOM_BYTES = 1 << 16
"""Kept until the end, so that a full disk has room for the word that it is full."""


@dataclass(slots=True)
class Job:
    """What is known of this rank when it ends, well or badly."""

    run: RunDir
    attempt: AttemptDir
    number: int
    rank_info: parallel.RankInfo
    knows_attempt: bool = True
    """False = started by hand, and rank 0 has not said yet which attempt is theirs: this one may be another start's."""
    step: int | None = None
    """None = it has not begun to train: then it is the newest checkpoint's, also while that is loaded."""
    last_saved_step: int | None = None

    def end(self, kind: OutcomeKind, *, retry: bool, reason: str) -> int:
        """Writes outcome.json unless another rank has; the exit code."""
        if not self.knows_attempt:
            return exit_code(kind, retry=retry)
        self.attempt.room.unlink(missing_ok=True)
        if self.step is None:
            self.last_saved_step = folders.newest_committed(self.run.checkpoints)
            self.step = self.last_saved_step or 0
        self.attempt.write_outcome(
            kind,
            retry=retry,
            step=self.step,
            last_saved_step=self.last_saved_step,
            rank=self.rank_info.rank,
            reason=reason,
        )
        return exit_code(kind, retry=retry)

    def leave(self) -> None:
        """Ends this rank before its first step: nothing is lost by it."""
        os._exit(self.end("saved", retry=True, reason="stopped on request before the first step"))


def main(bundle_folder: Path, stop: StopSignal) -> int:
    """Runs this rank to its end; the exit code of docs/contracts.md. The run folder is the bundle's parent."""
    rank_info = parallel.RankInfo.from_env()
    run = RunDir(bundle_folder.resolve().parent)
    number = by_hand.attempt_of(run, rank_info.rank) if by_hand.is_by_hand() else int(os.environ["COLOSSEUM_ATTEMPT"])
    known = rank_info.rank == 0 or not by_hand.is_by_hand()
    job = Job(run=run, attempt=run.attempt(number), number=number, rank_info=rank_info, knows_attempt=known)
    job.attempt.root.mkdir(parents=True, exist_ok=True)
    try:
        if rank_info.rank == 0:
            job.attempt.room.write_bytes(bytes(ROOM_BYTES))
        bundle = read_bundle(bundle_folder)
        recipe = bundle.recipe
        _check_ranks(recipe, rank_info)
        stop.leave_at_once(job.leave)
        parallel.start(recipe, rank_info, 2 * _hang_timeout_s(recipe))
        if by_hand.is_by_hand():
            job.number = by_hand.agreed(number)
            job.attempt, job.knows_attempt = run.attempt(job.number), True
        buffers = userbuffers.start(recipe)
        stopped = train(job, recipe, stop, predicted_step_s=bundle.plan.step_time_s)
        if buffers:
            userbuffers.stop()
        dist.destroy_process_group()
    except Exception as error:
        verdict = judge(error)
        # First the outcome: on a full disk the log takes no line, and the room held back is for this one.
        code = job.end(verdict.kind, retry=verdict.retry, reason=verdict.reason)
        with suppress(OSError):
            if verdict.kind == "crash":
                traceback.print_exc()
            sys.stderr.write(f"{verdict.kind}: {verdict.reason}\n")
            sys.stderr.flush()
        # Other ranks may wait in a collective: leaving at once, without tearing groups down, ends them all.
        os._exit(code)
    if stopped:
        return job.end("saved", retry=True, reason=f"stopped on request at step {job.step}")
    return job.end("completed", retry=False, reason=f"step {job.step} of {job.step}")


def train(job: Job, recipe: Recipe, stop: StopSignal, *, predicted_step_s: float | None = None) -> bool:
    """Builds everything in the groups that are formed, and trains; True if asked to stop before the last step.

    Args:
        predicted_step_s: of the plan, to stand beside what is measured.
    """
    reading.guard()
    writer = MetricsWriter(job.run, job.number, tensorboard=True) if job.rank_info.rank == 0 else None
    total_steps = derived.total_steps(recipe) or 0
    training = _build(job.run, recipe, total_steps)
    saver = saving.Saver(job.run, job.number, recipe)
    training.task.prepare(setup(job.run, training))
    state = begin(job.run, job.number, training, saver, writer)
    job.step, job.last_saved_step = state.step, saver.last_saved_step
    train, validation = _samples(training, state, total_steps)
    if writer:
        writer.event("data_probe", state.step, **probe(recipe, train, state.consumed_samples))
        if reason := train.left_out(total_steps):
            writer.event("rows_left_out", state.step, reason=reason)
            sys.stdout.write(f"{reason}\n")
    watchdog = Watchdog(job.attempt, job.rank_info.rank, _hang_timeout_s(recipe), lambda: saver.last_saved_step)
    watchdog.start()
    stop.leave_after_steps()
    work = loop.Loop(
        training=training,
        state=state,
        total_steps=total_steps,
        train=train,
        validation=validation,
        saver=saver,
        stop=stop,
        watchdog=watchdog,
        writer=writer,
        rewind=functools.partial(rewind, job.run, job.number, training, saver, writer),
        rewinds=rewinds(job.run),
        predicted_step_s=predicted_step_s,
    )
    try:
        with garbage.manual():
            return loop.run(work)
    finally:
        watchdog.stop()
        job.step, job.last_saved_step = state.step, saver.last_saved_step
        if writer:
            writer.close()


def _hang_timeout_s(recipe: Recipe) -> float:
    return float(parse_duration_s(recipe.stability.hang_timeout))


def _check_ranks(recipe: Recipe, rank_info: parallel.RankInfo) -> None:
    if rank_info.ranks != recipe.resources.gpus:
        raise ConfigFailure(f"the recipe needs {recipe.resources.gpus} ranks, but {rank_info.ranks} were started")


def _build(run: RunDir, recipe: Recipe, total_steps: int) -> Training:
    cache = Path(recipe.data.cache_dir) if recipe.data.cache_dir else run.data_cache
    config, chunks = model.build(recipe)
    wrapped = optimizer.wrap(recipe, config, chunks)
    adam = optimizer.build(recipe, config, wrapped)
    clip_grad = recipe.optimizer.clip_grad
    one_pass = fused_step.install(adam, clip_grad) if recipe.fusion.optimizer_step else None
    return Training(
        recipe=recipe,
        task=task_of(recipe, cache),
        model=wrapped,
        optimizer=adam,
        schedule=optimizer.schedule(recipe, adam, total_steps),
        clip=one_pass or functools.partial(optimizer.clip, adam, clip_grad),
    )


def _samples(training: Training, state: State, total_steps: int) -> tuple[Samples, Samples | None]:
    """Training samples to the last step, and those that each validation reads."""
    recipe, task = training.recipe, training.task
    size = state.consumed_samples + (total_steps - state.step) * recipe.batch.gbs
    train = task.samples("train", size)
    if not recipe.train.val_steps:
        return train, None
    return train, task.samples("valid", recipe.train.val_steps * recipe.batch.gbs)
