"""What a run of a foreign engine leaves for another run to begin with; only file names are looked at."""

from __future__ import annotations

import re
from pathlib import Path

from colosseum.engines.foreign import TRACKER
from colosseum.engines.nemo1_config import LOGS, PREFIX
from colosseum.rundir import RunDir, checkpoint_folder

FINAL_NEMO = f"{LOGS}/checkpoints/{PREFIX}.nemo"
"""Inside the folder of a complete ``nemo1`` run: weights and configuration."""


def left_by(engine: str, run: RunDir) -> dict[int, Path]:
    """Checkpoints by step, ascending: Megatron-LM's up to its tracker's, NeMo 2's finished ones, NeMo 1's last."""
    newest = _tracked(run)
    if engine == "nemo1":
        path = run.root / FINAL_NEMO
        return {newest: path} if path.exists() else {}
    if engine == "nemo2":
        found = {}
        for path in sorted((run.root / LOGS / "checkpoints").glob("*")):
            step = re.search(r"step=(\d+)(?!.*unfinished)", path.name)
            if step and path.is_dir() and not path.with_name(f"{path.name}-unfinished").exists():
                found[int(step[1])] = path
        return dict(sorted(found.items()))
    steps = (int(path.name[5:]) for path in run.checkpoints.glob("iter_*") if path.name[5:].isdigit())
    return {step: checkpoint_folder(run.checkpoints, step) for step in sorted(steps) if step <= newest}


def _tracked(run: RunDir) -> int:
    """Megatron's own file, which ``start.py`` writes for NeMo."""
    try:
        text = (run.checkpoints / TRACKER).read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
