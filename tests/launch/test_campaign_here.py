"""A campaign on this machine whose second stage is deeper: its gate expands the checkpoint."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from colosseum.checkpoint.folders import is_committed, newest_committed, read_metadata
from colosseum.data.indexed import write_dataset
from colosseum.launch.campaigns.gate import pass_through
from colosseum.rundir import RunDir, checkpoint_folder, latest_rows

COLOSSEUM = Path(sys.executable).parent / "colosseum"
TOKENIZER = {
    "added_tokens": [
        {
            "id": 0,
            "content": "<|endoftext|>",
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
    ],
    "model": {"type": "BPE", "vocab": {"<|endoftext|>": 0}, "merges": []},
}
STAGES = """
name: deeper
stages:
  - {name: base, recipe: debug/cpt-4k-bf16, overrides: [model.num_layers=2]}
  - {name: same, recipe: debug/cpt-fp8, overrides: [model.num_layers=2, "checkpoint.from=stage:base"]}
  - {name: grown, recipe: debug/cpt-fp8, overrides: [model.num_layers=4, "checkpoint.from=stage:base"]}
"""
WORDS = ("checkpoint.load=[weights]", "train.steps=2", "train.val_every_steps=2", "train.val_steps=1")
SMALL = ("batch.gbs=4", "batch.mbs=4", "batch.seq_length=64", "optimizer.warmup_steps=0", "checkpoint.every_steps=2")


def _losses(run: RunDir) -> list[float]:
    return [row["loss"] for row in latest_rows(run.metrics, "train")]


def test_a_deeper_stage_begins_with_the_loss_of_one_that_is_not(tmp_path: Path) -> None:
    demo, draw = tmp_path / "data" / "demo", random.Random(0)
    for name in ("languages", "english", "code"):
        with write_dataset(demo / name, 2048) as writer:
            for _ in range(100):
                writer.add_document([draw.randrange(2048) for _ in range(400)])
    (demo / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (tmp_path / "deeper.yaml").write_text(STAGES)
    command = [COLOSSEUM, "campaign", "run", "deeper.yaml", "--cluster", "local", *SMALL, *WORDS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    file = next(tmp_path.glob("**/campaign.json"))
    base, same, grown = (RunDir(file.parent.parent / s["run"]) for s in json.loads(file.read_text())["stages"])
    assert _losses(grown)[0] == pytest.approx(_losses(same)[0], abs=1e-5)
    assert _losses(grown)[1] != _losses(same)[1]  # two more layers learned, too

    gate = json.loads(grown.gate.read_text())
    assert gate["passed"] and gate["expands"] and not same.grown.exists()
    assert "expanded from 2 to 4 layers (new: 2, 4; init identity, optimizer drop)" in gate["notes"]
    folder = checkpoint_folder(grown.grown / "checkpoints", 2)
    origin = read_metadata(folder).origin
    assert origin is not None and origin.source == f"{base.root.name}@2"

    # What a killed gate left is no checkpoint, and the gate is run again to its end.
    before = (folder / "colosseum.json").read_bytes()
    (folder / "colosseum.json").unlink()
    next(folder.glob("*.distcp")).write_bytes(b"half")
    assert newest_committed(grown.grown / "checkpoints") is None
    assert pass_through(grown).passed and (folder / "colosseum.json").read_bytes() == before
    written = folder.stat().st_mtime_ns
    assert pass_through(grown).passed and folder.stat().st_mtime_ns == written  # once is enough

    # A changed byte of the source is found, and nothing passes for a whole result.
    shutil.rmtree(grown.grown)
    source = next(checkpoint_folder(base.checkpoints, 2).glob("*.distcp"))
    data = bytearray(source.read_bytes())
    data[len(data) // 2] ^= 1
    source.write_bytes(data)
    verdict = pass_through(grown)
    assert "the checkpoint was not expanded" in verdict.faults[0] and not is_committed(folder)
