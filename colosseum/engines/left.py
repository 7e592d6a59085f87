"""What a run of a foreign engine leaves for another run to begin with. No weights are read."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from typing import Any

import yaml

from colosseum.engines.foreign import SAMPLES_OF_NEMO_2, TRACKER
from colosseum.engines.nemo1_config import LOGS, PREFIX
from colosseum.rundir import RunDir, checkpoint_folder

FINAL_NEMO = f"{LOGS}/checkpoints/{PREFIX}.nemo"
"""Inside the folder of a complete ``nemo1`` run: weights and configuration."""
NEMO_CONFIG = "model_config.yaml"


def left_by(engine: str, run: RunDir, gbs: int) -> dict[int, Path]:
    """Checkpoints by step, ascending: Megatron-LM's up to its tracker's, NeMo 2's finished ones, NeMo 1's last.

    Args:
        gbs: samples of a step of that run.
    """
    newest = _tracked(run)
    if engine == "nemo1":
        path = run.root / FINAL_NEMO
        return {newest: path} if path.exists() else {}
    if engine == "nemo2":
        found = {}
        for path in sorted((run.root / LOGS / "checkpoints").glob("*")):
            samples = re.search(SAMPLES_OF_NEMO_2, path.name)
            if samples and path.is_dir() and not path.with_name(f"{path.name}-unfinished").exists():
                found[int(samples[1]) // gbs] = path
        return dict(sorted(found.items()))
    steps = (int(path.name[5:]) for path in run.checkpoints.glob("iter_*") if path.name[5:].isdigit())
    return {step: checkpoint_folder(run.checkpoints, step) for step in sorted(steps) if step <= newest}


NEMO_SHAPE = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups")
"""Keys of a .nemo's configuration that tell which model it is of; ``ModelShape`` has them by the same names."""


def nemo_config(path: Path) -> dict[str, Any] | None:
    """The model configuration inside a .nemo, a folder or a tar file; None = it holds none that can be read."""
    try:
        if path.is_dir():
            found = yaml.safe_load((path / NEMO_CONFIG).read_bytes())
        else:
            with tarfile.open(path) as archive:
                member = next((m for m in archive if m.isfile() and m.name in (NEMO_CONFIG, f"./{NEMO_CONFIG}")), None)
                file = archive.extractfile(member) if member else None
                found = yaml.safe_load(file) if file else None
    except (OSError, tarfile.TarError, yaml.YAMLError):
        return None
    return found if isinstance(found, dict) else None


def _tracked(run: RunDir) -> int:
    """Megatron's own file, which ``start.py`` writes for NeMo."""
    try:
        text = (run.checkpoints / TRACKER).read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
