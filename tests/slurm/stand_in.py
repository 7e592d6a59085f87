"""One rank of a program that speaks the runtime's protocol without training: for what the job script does around it.

Its loss of a step depends on every step before (a chain of hashes), so a curve that equals an uninterrupted run's was
resumed right. Faults come from a file ``fault`` in the run folder:
``KIND STEP RANK ATTEMPT…``; with a file ``deaf`` the first attempt does not hear that it should leave.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from colosseum.rundir import (
    CHECKPOINT_MARK,
    EXIT_FINAL,
    EXIT_SAVED,
    RunDir,
    append_line,
    checkpoint_folder,
    saved_steps,
)

STEPS, SAVE_EVERY = 40, 5
STEP_S = float(os.environ.get("STAND_IN_STEP_S", "0.25"))
SAVE_TIME_S = float(os.environ.get("STAND_IN_SAVE_TIME_S", "0.1"))
"""What a checkpoint says that it took."""


def next_state(state: int, step: int) -> int:
    return (state * 6364136223846793005 + step) % 2**64


def curve() -> list[float]:
    """Losses of steps 1 to STEPS."""
    state, losses = 0, []
    for step in range(1, STEPS + 1):
        state = next_state(state, step)
        losses.append(state / 2**64)
    return losses


def main() -> int:
    run, rank, attempt = RunDir(Path.cwd()), int(os.environ["RANK"]), int(os.environ["COLOSSEUM_ATTEMPT"])
    asked: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda n, _: asked.append(n))
    steps = saved_steps(run.checkpoints)
    state, step, saved = 0, 0, 0
    if steps:
        saved = step = steps[-1]
        state = json.loads((checkpoint_folder(run.checkpoints, step) / CHECKPOINT_MARK).read_text())["state"]
    print(f"rank {rank} starts from step {step}", flush=True)
    last = int(os.environ["COLOSSEUM_STOP_AFTER_STEP"])
    if (run.root / "deaf").exists() and attempt == 0:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    kind, at_step, at_rank, *attempts = (*(_fault(run) or ("", "0", "0")),)
    while step < STEPS:
        time.sleep(STEP_S)
        step += 1
        state = next_state(state, step)
        if kind and (step, rank) == (int(at_step), int(at_rank)) and (not attempts or str(attempt) in attempts):
            if kind == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "hang":
                time.sleep(3600)
            run.attempt(attempt).write_outcome(
                kind,  # type: ignore[arg-type]
                retry=False,
                step=step,
                last_saved_step=saved,
                rank=rank,
                reason=f'the loss is "NaN" at step {step}',
            )
            return EXIT_FINAL
        leave = _any(run.attempt(attempt).root / "barrier", step, rank, bool(asked)) or step in (STEPS, last)
        if rank == 0:
            row = {"kind": "train", "step": step, "attempt": attempt, "time_unix_s": time.time()}
            append_line(run.metrics, {**row, "loss": state / 2**64, "step_time_s": STEP_S})
        if leave or step % SAVE_EVERY == 0:
            saved = step
            if rank == 0:
                _save(run, step, state)
        if leave:
            kind_of_end = "completed" if step == STEPS else "saved"
            run.attempt(attempt).write_outcome(
                kind_of_end,  # type: ignore[arg-type]
                retry=kind_of_end == "saved",
                step=step,
                last_saved_step=step,
                rank=rank,
                reason=f"step {step}",
            )
            return 0 if kind_of_end == "completed" else EXIT_SAVED
    return 0


def _any(folder: Path, step: int, rank: int, word: bool) -> bool:
    """The ranks' collective: waits for the word of every rank, for ever if one is dead."""
    folder.mkdir(exist_ok=True)
    files = [folder / f"{step}-{r}-{w}" for r in range(int(os.environ["WORLD_SIZE"])) for w in (False, True)]
    (folder / f"{step}-{rank}-{word}").touch()
    while sum(f.exists() for f in files) < len(files) // 2:
        time.sleep(0.01)
    return any(f.exists() for f in files[1::2])


def _save(run: RunDir, step: int, state: int) -> None:
    folder = checkpoint_folder(run.checkpoints, step)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "mark"
    temporary.write_text(json.dumps({"step": step, "state": state, "save_time_s": SAVE_TIME_S}))
    temporary.rename(folder / CHECKPOINT_MARK)


def _fault(run: RunDir) -> list[str] | None:
    file = run.root / "fault"
    return file.read_text().split() if file.exists() else None


if __name__ == "__main__":
    sys.exit(main())
