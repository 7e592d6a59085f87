"""Checkpoint folders ``iter_0000100`` as Megatron names them: mcore's and Megatron-LM's own."""

from __future__ import annotations

from pathlib import Path

from colosseum.rundir import LATEST_FILE, RunDir, checkpoint_folder


def unfinished(path: Path) -> str | None:
    """Why Megatron-LM cannot start from a folder of checkpoints, or from one of them; None = it can."""
    if not path.name.startswith("iter_"):
        try:
            word = (path / LATEST_FILE).read_text()[:32].strip()
        except (OSError, UnicodeDecodeError):
            word = ""
        if word != "release" and not word.isdecimal():
            return f"holds no {LATEST_FILE} that names a step; its folders iter_… can be named, too"
        path = path / "release" if word == "release" else checkpoint_folder(path, int(word))
    return None if (path / ".metadata").is_file() else f"is unfinished: {path} has no .metadata"


def latest_step(run: RunDir) -> int:
    """The step in Megatron's tracker file, which ``start.py`` writes for NeMo too; 0 = none."""
    try:
        text = (run.checkpoints / LATEST_FILE).read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0


def up_to_tracker(run: RunDir) -> dict[int, Path]:
    """Folders by step, up to the tracker's: a later one may be unfinished."""
    newest = latest_step(run)
    steps = (int(path.name[5:]) for path in run.checkpoints.glob("iter_*") if path.name[5:].isdigit())
    return {step: checkpoint_folder(run.checkpoints, step) for step in sorted(steps) if step <= newest}
