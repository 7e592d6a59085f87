"""What ``colosseum select`` compares: each checkpoint of a run, the newest of each point of a sweep, their parent."""

from __future__ import annotations

from pathlib import Path

import pytest

from colosseum.errors import RefusedInput
from colosseum.launch.trials.candidates import entries_of
from colosseum.launch.trials.sweep import Point, Sweep
from colosseum.rundir import CHECKPOINT_MARK, checkpoint_folder
from tests.checkpoint import test_folders
from tests.checkpoint.test_kept import run_folder


def test_of_a_run(tmp_path: Path) -> None:
    parent, run = run_folder(tmp_path, "base"), run_folder(tmp_path, "sft", parent="base", step="5")
    test_folders.save(parent.checkpoints, 5)
    for step in (10, 20, 30):
        test_folders.save(run.checkpoints, step)
    (checkpoint_folder(run.checkpoints, 30) / CHECKPOINT_MARK).unlink()
    found = entries_of("sft", tmp_path)
    assert [(e.name, e.run, e.step) for e in found.entries] == [("step 10", "sft", 10), ("step 20", "sft", 20)]
    assert found.entries[1].checkpoint == checkpoint_folder(run.checkpoints, 20)
    assert found.parent == checkpoint_folder(parent.checkpoints, 5)
    assert found.folder == run.root.resolve()
    (checkpoint_folder(parent.checkpoints, 5) / CHECKPOINT_MARK).unlink()
    assert entries_of("sft", tmp_path).parent is None, "it is gone"


def test_a_parent_that_the_recipe_names(tmp_path: Path) -> None:
    parent, run = run_folder(tmp_path, "base"), run_folder(tmp_path, "sft", begins="run:base@5")
    for folder in (parent.checkpoints, run.checkpoints):
        test_folders.save(folder, 5)
    assert entries_of("sft", tmp_path).parent == checkpoint_folder(tmp_path / "base" / "checkpoints", 5)
    assert entries_of("base", tmp_path).parent is None


def test_of_a_sweep(tmp_path: Path) -> None:
    points = []
    for index, steps in enumerate(((10, 20), (), (10,))):
        run = run_folder(tmp_path, f"point-{index}")
        for step in steps:
            test_folders.save(run.checkpoints, step)
        points.append(Point(values={"optimizer.lr": f"{index}e-5"}, run=run.root.name, recipe_hash="0"))
    (tmp_path / "sweep-lr").mkdir()
    Sweep(root=tmp_path / "sweep-lr", name="lr", points=tuple(points), at_once=None).write()
    found = entries_of("lr", tmp_path)
    assert [(e.name, e.run, e.step) for e in found.entries] == [
        ("0: optimizer.lr=0e-5", "point-0", 20),
        ("2: optimizer.lr=2e-5", "point-2", 10),
    ]
    assert found.folder == tmp_path / "sweep-lr"


def test_nothing_to_compare(tmp_path: Path) -> None:
    run_folder(tmp_path, "empty")
    with pytest.raises(RefusedInput, match="empty has no complete checkpoint"):
        entries_of("empty", tmp_path)
    with pytest.raises(RefusedInput, match="no such run"):
        entries_of("absent", tmp_path)
