"""``colosseum cluster check`` against a real Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from colosseum.launch.slurm.cluster_check import check
from colosseum.recipe.cluster import Cluster
from colosseum.recipe.load import load
from tests.slurm.conftest import DevSlurm


@pytest.fixture(autouse=True)
def _here(slurm: DevSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")


def _cluster(runs: Path, **slurm: Any) -> Cluster:
    recipe = load("generic", [f"cluster.paths.runs={runs}"], cluster="dev-slurm").recipe
    return recipe.cluster.model_copy(update={"slurm": recipe.cluster.slurm.model_copy(update=slurm)})


def test_slurm_cluster_that_is_as_its_file_says(tmp_path: Path) -> None:
    found = check(_cluster(tmp_path), time_limit_s=3600, with_job=True)
    assert {c.name: c.passed for c in found} == dict.fromkeys(
        (
            "commands",
            "partition",
            "a job of one node",
            "a job of all nodes",
            "runs folder",
            "a job now",
            "shared runs folder",
            "python3",
            "clocks",
        ),
        True,
    )
    assert list(tmp_path.iterdir()) == []


def test_slurm_cluster_that_is_not(tmp_path: Path) -> None:
    wrong = _cluster(tmp_path / "no" / "where", partition="short", mpi="telepathy").model_copy(update={"nodes": 5})
    failed = {c.name: c.detail for c in check(wrong, time_limit_s=3600, with_job=False) if c.passed is False}
    assert failed["partition"] == "short of 4 nodes, and the cluster file says 5"
    assert "time limit" in failed["a job of one node"]
    assert "srun has no telepathy" in failed["MPI plugin"]
    assert "cannot be made" in failed["runs folder"]
    assert not (tmp_path / "no").exists()
