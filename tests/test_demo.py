"""scripts/demo, the newcomer's first command, from corpus to resumed checkpoint."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from colosseum.demo import main
from colosseum.demo_answers import hedged_share, plain_share, right_share
from colosseum.demo_answers import main as answers
from colosseum.monitor.report import summarise
from colosseum.rundir import RunDir

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 2400
"""Four minutes on an idle machine, nine with --all."""


def _demo(folder: Path, *words: str) -> str:
    env = {**os.environ, "COLOSSEUM_DEMO": str(folder)}
    done = subprocess.run([ROOT / "scripts/demo", *words], env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def _learns(folder: Path, *words: str) -> str:
    """The page."""
    page = _demo(folder, *words)
    first, resumed = (summarise(RunDir(root)) for root in sorted((folder / "runs").glob("2*"))[:2])
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
    return page


def test_demo_with_few_steps(tmp_path: Path) -> None:
    _learns(tmp_path, "train.steps=100")


@pytest.mark.long
def test_demo_and_all_five_stages(tmp_path: Path) -> None:
    """SFT teaches answers, DPO takes the hedges away, and the exported folder holds the last stage's model."""
    page = _learns(tmp_path, "--all")
    assert re.search(r"dpo +sft +passed .* done", page)
    files = {stage: tmp_path / f"answers-{stage}.jsonl" for stage in ("pretraining", "sft", "dpo")}
    before, taught, aligned = ([json.loads(line) for line in file.read_text().splitlines()] for file in files.values())
    assert right_share(before) < 0.2 < 0.6 < right_share(taught)
    assert hedged_share(aligned) < 0.2 < 0.5 < hedged_share(taught)
    assert plain_share(aligned) > plain_share(taught)
    assert "right and not hedged" in page
    config = json.loads((tmp_path / "aligned-hf" / "config.json").read_text())
    assert (config["architectures"], config["num_hidden_layers"]) == (["NemotronForCausalLM"], 6)
    # The page itself fails where nothing was learned.
    same = [f"{stage}={files['sft']}" for stage in files]
    assert answers(str(tmp_path / "aligned-hf"), *same) == 4
