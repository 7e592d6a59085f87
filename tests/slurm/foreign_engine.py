"""What ``engines/start.py`` starts in a drill: prints a log, saves as Megatron does, hears only TERM."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from tests.slurm.stand_in import STEP_S, STEPS, next_state

TRACKER, STATE = Path("checkpoints/latest_checkpointed_iteration.txt"), Path("checkpoints/state")
COMMAND = {
    "engine": "a stand-in",
    "program": __file__,
    "home": None,
    "image": "",
    "arguments": [],
    "first": ["fresh"],
    "env": {"PYTHONPATH": str(Path(__file__).parents[2])},
    "patterns": {"train": {"step": r"^step ([0-9]+) ", "loss": r" loss ([0-9.e+-]+)$"}},
    "scales": {},
    "constants": {"gbs": 8, "tokens_per_step": 8},
    "first_step": 1,
    "stop_at_nan": True,
    "total_steps": STEPS,
    "may_drop_steps": 0,
    "checkpoints": {"folder": "checkpoints", "glob": "*", "pattern": None, "counts": "steps"},
    "continues": None,
    "checks": None,
    "names": {
        "attempts": "attempts",
        "checkpoints": "checkpoints",
        "metrics": "metrics.jsonl",
        "outcome": "outcome.json",
        "tracker": TRACKER.name,
    },
}


def main() -> None:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    shows = os.environ["RANK"] == "1"
    state, step = 0, 0
    if "fresh" not in sys.argv:
        state, step = int(STATE.read_text()), int(TRACKER.read_text())
    while step < STEPS and not asked:
        time.sleep(STEP_S)
        step += 1
        state = next_state(state, step)
        if shows:
            print(f"step {step} loss {state / 2**64!r}", flush=True)
    if shows:
        TRACKER.parent.mkdir(exist_ok=True)
        STATE.write_text(str(state))
        TRACKER.write_text(str(step))


if __name__ == "__main__":
    main()
