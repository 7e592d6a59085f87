"""What a run writes down: metrics.jsonl, events.jsonl, ledger.jsonl and TensorBoard. One rank makes a writer."""

from __future__ import annotations

import importlib.util
import math
import os
import time
from pathlib import Path
from typing import Any, Literal

from colosseum.atomic import write_whole
from colosseum.records import Event, MetricsRow, append
from colosseum.rundir import RunDir, append_line

Kind = Literal["train", "val", "save", "load"]
_SHOWN = ("loss", "lr", "grad_norm", "tokens_per_s", "step_time_s", "mfu", "model_tflops_per_gpu")


class MetricsWriter:
    """Rows of one attempt; a figure that is not finite is written as null (JSON has no NaN)."""

    def __init__(self, run: RunDir, attempt: int, *, tensorboard: bool) -> None:
        self._run, self._attempt = run, attempt
        self._board: Any = None
        for path in (run.metrics, run.events, run.ledger):
            _end_incomplete_line(path)
        if tensorboard and importlib.util.find_spec("tensorboard"):  # an image may lack it
            from torch.utils.tensorboard.writer import SummaryWriter

            self._board = SummaryWriter(str(run.tensorboard), flush_secs=30)
        self._wandb = _wandb_run(run)

    def row(self, kind: Kind, step: int, **fields: Any) -> dict[str, Any]:
        """Appends one row of metrics.jsonl; the row."""
        figures = {name: _finite(value) for name, value in fields.items()}
        row = MetricsRow(kind, step, self._attempt, time.time(), figures)
        append(self._run.metrics, row.to_line())
        shown = {f"{kind}/{name}": fields[name] for name in _SHOWN if _is_figure(fields.get(name))}
        if self._board is not None:
            for name, value in shown.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None and shown:
            self._wandb.log({**shown, "step": step})
        return row.as_row()

    def event(self, kind: str, step: int, **fields: Any) -> None:
        """Appends one row of events.jsonl."""
        details = {name: _finite(value) for name, value in fields.items()}
        append(self._run.events, Event(kind, step, self._attempt, time.time(), details).to_line())

    def ledger(self, step: int, consumed_samples: int, tokens_by_source: dict[str, int]) -> None:
        """Appends one row of ledger.jsonl."""
        row = {"step": step, "attempt": self._attempt, "consumed_samples": consumed_samples}
        append_line(self._run.ledger, {**row, "tokens_by_source": tokens_by_source})

    def fp8_scan(self, step: int, text: str) -> None:
        """Writes the scan of a step (`runtime/fp8`)."""
        self._run.fp8_scans.mkdir(exist_ok=True)
        write_whole(self._run.fp8_scans / f"step-{step:07d}.json", text.encode())

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def _wandb_run(run: RunDir) -> Any:
    """A Weights & Biases run where WANDB_PROJECT asks for one and the package is there; all attempts are one run.

    Its key comes from the environment or the user's netrc, as the package reads it; nothing of it is kept here.
    """
    if not os.environ.get("WANDB_PROJECT") or not importlib.util.find_spec("wandb"):
        return None
    import wandb

    return wandb.init(id=run.root.name, name=run.root.name, dir=str(run.root), resume="allow")


def _is_figure(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _end_incomplete_line(path: Path) -> None:
    """A line that a crash or a full disk cut short gets its end, or the next one would be lost with it."""
    try:
        with path.open("r+b") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
    except FileNotFoundError:
        return
