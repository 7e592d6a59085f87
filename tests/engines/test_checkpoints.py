"""Checkpoints of foreign engines, as their runs leave them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colosseum.bundle import to_yaml
from colosseum.engines import start
from colosseum.engines.nemo2 import engine as nemo2
from colosseum.engines.registry import engine_of
from colosseum.errors import RefusedInput
from colosseum.launch.bundles.inputs import checkpoint_reference
from colosseum.recipe.source import FromRun
from colosseum.rundir import RunDir
from tests.engines.conftest import Rendered

# As NeMo 2.7.3 named them in a run of 20 steps of 4 samples; the third was cut off.
NEMO2 = (
    "--val_loss=7.5710-epoch=0-consumed_samples=40.0",
    "--val_loss=7.4681-epoch=0-consumed_samples=80.0-last",
    "--val_loss=7.4000-epoch=0-consumed_samples=120.0",
    "--val_loss=7.4000-epoch=0-consumed_samples=120.0-unfinished",
)


def _run(root: Path, engine: str) -> RunDir:
    run = RunDir(root / "runs" / "parent")
    run.bundle.mkdir(parents=True)
    (run.bundle / "recipe.yaml").write_bytes(to_yaml({"engine": engine, "batch": {"gbs": 4}}))
    return run


def _nemo2(root: Path) -> RunDir:
    run = _run(root, "nemo2")
    for name in NEMO2[:3]:
        (run.root / "nemo/checkpoints" / name).mkdir(parents=True)
    (run.root / "nemo/checkpoints" / NEMO2[3]).touch()
    return run


def test_nemo_2_s_newest_finished_folder(tmp_path: Path) -> None:
    run = _nemo2(tmp_path)
    assert list(engine_of("nemo2").checkpoints(run, 4)) == [10, 20]
    path, step = checkpoint_reference(run, None, tmp_path / "runs")
    assert (Path(str(path)).name, step) == (NEMO2[1], 20)
    assert Path(str(checkpoint_reference(run, 10, tmp_path / "runs")[0])).name == NEMO2[0]


def test_start_counts_steps_as_the_engine_does(
    tmp_path: Path, rendered: Rendered, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = json.loads(rendered("generic", "engine=nemo2", "batch.gbs=8").files["command.json"])
    assert command["checkpoints"]["pattern"] == nemo2.CHECKPOINTS["pattern"]
    monkeypatch.chdir(_nemo2(tmp_path).root)
    assert start.saved_step(command) == 80 // 8


def test_nemo_1_leaves_one_model_at_its_end(tmp_path: Path) -> None:
    run, runs = _run(tmp_path, "nemo1"), tmp_path / "runs"
    with pytest.raises(RefusedInput, match=r"not complete: NeMo 1\.x leaves nemo/checkpoints/model\.nemo"):
        checkpoint_reference(run, None, runs)
    (run.root / "nemo/checkpoints").mkdir(parents=True)
    (run.root / "nemo/checkpoints/model.nemo").touch()
    run.checkpoints.mkdir()
    (run.checkpoints / "latest_checkpointed_iteration.txt").write_text("20")
    assert checkpoint_reference(run, None, runs) == (FromRun("parent"), 20)
    with pytest.raises(RefusedInput, match="no checkpoint of step 10; it has 20"):
        checkpoint_reference(run, 10, runs)


def test_megatron_lm_s_folders_count_up_to_its_tracker(tmp_path: Path) -> None:
    run = _run(tmp_path, "megatron-lm")
    for step in (10, 20, 30):
        (run.checkpoints / f"iter_{step:07d}").mkdir(parents=True)
    (run.checkpoints / "latest_checkpointed_iteration.txt").write_text("20")
    assert list(engine_of("megatron-lm").checkpoints(run, 4)) == [10, 20]
    assert checkpoint_reference(run, None, tmp_path / "runs") == (FromRun("parent", 20), 20)
