"""scripts/demo, the newcomer's first command, from corpus to resumed checkpoint."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from colosseum.demo import main
from colosseum.monitor.report import summarise
from colosseum.rundir import RunDir

ROOT = Path(__file__).resolve().parents[1]


def _demo(folder: Path, *words: str) -> str:
    env = {**os.environ, "COLOSSEUM_DEMO": str(folder)}
    done = subprocess.run([ROOT / "scripts/demo", *words], env=env, capture_output=True, text=True, timeout=560)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def _learns(folder: Path, *words: str) -> None:
    page = _demo(folder, *words)
    first, resumed = (summarise(RunDir(root)) for root in sorted((folder / "runs").iterdir()))
    entropy = float(re.search(r"unigram entropy +(\d+\.\d+):", page)[1])  # type: ignore[index]
    assert 4 < entropy < 7.6, "nats a token, below ln 2048"
    assert first.last_validation_loss is not None
    assert first.last_validation_loss < entropy - 0.3
    assert resumed.first_step == first.last_step + 1
    assert (first.run.root / "loss.png").read_bytes().startswith(b"\x89PNG")
    for word in ("→", "validation loss", "tokens/s", "checkpoints", "What to type next", "┄"):
        assert word in page
    # The page itself fails for a run that does not go on where the other ended.
    assert main(str(first.run.root), str(first.run.root)) == 4


def test_demo_with_few_steps(tmp_path: Path) -> None:
    _learns(tmp_path, "train.steps=100")


@pytest.mark.long
def test_demo_as_it_is(tmp_path: Path) -> None:
    _learns(tmp_path)
