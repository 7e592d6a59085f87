"""A run that is being followed: its rows of metrics.jsonl as lines for a terminal or a log file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, TextIO

from colosseum.terminal import clean
from colosseum.units import format_bytes, format_duration

LINE_EVERY_S = 1.0


def progress_line(row: Mapping[str, Any]) -> str:
    """What one row says, empty for an unknown kind; rows of other writers may lack a figure."""

    def figure(key: str, form: str, unit: str = "") -> list[str]:
        value = row.get(key)
        return [f"{form.format(value)}{unit}"] if isinstance(value, int | float) else []

    head = f"step {row.get('step', '?'):>6}  "
    if row.get("kind") == "train":
        parts = figure("loss", "loss {:.4f}") + figure("lr", "lr {:.2e}") + figure("grad_norm", "grad norm {:.3f}")
        parts += figure("step_time_s", "{:.3f}", " s") + figure("tokens_per_s", "{:,.0f}", " tokens/s")
        return head + "  ".join([*parts, *(["skipped"] if row.get("skipped") else [])])
    if row.get("kind") == "val":
        return head + "validation  " + "  ".join(figure("loss", "loss {:.4f}") + figure("time_s", "{:.1f}", " s"))
    if row.get("kind") in ("save", "load"):
        size, took = row.get("bytes"), row.get("time_s")
        text = "saved" if row["kind"] == "save" else "loaded"
        text += f"  {format_bytes(size)}" if isinstance(size, int | float) else ""
        return head + text + (f" in {format_duration(took)}" if isinstance(took, int | float) else "")
    return ""


class Progress:
    """Lines of a run that is being followed: every validation and save, training steps about once a second."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown_at = 0.0

    def say(self, text: str) -> None:
        self._out.write(f"{clean(text)}\n")
        self._out.flush()

    def row(self, row: Mapping[str, Any]) -> None:
        """One row of metrics.jsonl."""
        now = time.monotonic()
        if row.get("kind") == "train":
            if now - self._shown_at < LINE_EVERY_S:
                return
            self._shown_at = now
        if text := progress_line(row):
            self.say(text)
