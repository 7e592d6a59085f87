"""A run folder whose every second is known."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from colosseum.rundir import RunDir, append_line


class MadeRun:
    """Writes the records of a run at times that the caller says."""

    def __init__(self, root: Path) -> None:
        self.run = RunDir(root)
        self.run.bundle.mkdir(parents=True)
        (self.run.bundle / "manifest.json").write_text('{"total_steps": 20}')

    def submit(self, at: float) -> None:
        row = {"time_unix_s": at, "scheduler": "slurm", "job_id": "7", "argv": ["sbatch"]}
        append_line(self.run.submissions, row)

    def begin(self, number: int, at: float, saved_step: int = 0) -> None:
        folder = self.run.attempt(number)
        folder.root.mkdir(parents=True)
        env = {"attempt": number, "saved_step": saved_step, "job_id": "7", "restart": number, "nodes": "n[1-2]"}
        folder.env.write_text(json.dumps({**env, "time_unix_s": at}))

    def end(self, number: int, at: float, kind: Any, step: int) -> None:
        attempt = self.run.attempt(number)
        attempt.write_outcome(kind, retry=True, step=step, last_saved_step=None, rank=1, reason="made")
        os.utime(attempt.outcome, (at, at))

    def row(self, kind: str, attempt: int, step: int, at: float, **fields: Any) -> None:
        append_line(self.run.metrics, {"kind": kind, "step": step, "attempt": attempt, "time_unix_s": at, **fields})

    def train(self, attempt: int, step: int, at: float, step_time_s: float = 2.0, **fields: Any) -> None:
        figures = {"loss": 9.0 - step / 10, "lr": 1e-4, "grad_norm": 1.5, "mfu": 0.4, "tokens_per_s": 1000.0}
        figures |= {"step_time_s": step_time_s, "data_time_s": 0.1, "consumed_tokens": 100 * step}
        self.row("train", attempt, step, at, **figures | fields)


def killed_once(root: Path) -> RunDir:
    """Two attempts: 60 s of wall time, in each of which one thing happens.

    Submitted at 1000, started at 1010, steps 1-4 end at 1020 … 1026; a save of step 4 holds training for 1 s. Steps 5-7
    end at 1029 … 1033; a rank is killed, the attempt ends at 1036, the next starts at 1042, loads step 4 for 3 s,
    trains steps 5-7 again (ends 1052, 1054, 1056), step 8 ends at 1058, a validation takes 1 s, the attempt ends
    at 1060.
    """
    made = MadeRun(root)
    made.submit(1000)
    made.begin(0, 1010)
    for step, at in ((1, 1020), (2, 1022), (3, 1024), (4, 1026)):
        made.train(0, step, at)
    made.row("save", 0, 4, 1029.5, time_s=3.0, bytes=5)
    for step, at in ((5, 1029), (6, 1031), (7, 1033)):
        made.train(0, step, at)
    made.end(0, 1036, "crash", 7)
    made.begin(1, 1042, saved_step=4)
    made.row("load", 1, 4, 1049, time_s=3.0, bytes=5)
    for step, at in ((5, 1052), (6, 1054), (7, 1056), (8, 1058)):
        made.train(1, step, at, slowest_rank_s=1.0, median_rank_s=0.7 if step == 8 else 0.99)
    made.row("val", 1, 8, 1059, loss=7.5, samples=8, time_s=1.0)
    made.end(1, 1060, "completed", 8)
    return made.run
