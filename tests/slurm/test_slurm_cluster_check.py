"""``colosseum cluster check`` against a real Slurm."""

from __future__ import annotations

import resource
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
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    cluster, runs = _cluster(tmp_path / "runs"), tmp_path / "runs"
    runs.mkdir()
    cluster = cluster.model_copy(update={"paths": cluster.paths.model_copy(update={"scratch": str(scratch)})})
    found = check(cluster, time_limit_s=3600, with_job=True)
    memlock = next(c for c in found if c.name == "locked memory")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]  # of this machine's daemons, too
    assert memlock.passed is (True if limit == resource.RLIM_INFINITY else None)
    assert {c.name: c.passed for c in found if c is not memlock} == dict.fromkeys(
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
            "scratch folder",
        ),
        True,
    )
    assert list(runs.iterdir()) == list(scratch.iterdir()) == []


def test_slurm_cluster_that_is_not(tmp_path: Path) -> None:
    wrong = _cluster(tmp_path / "no" / "where", partition="short", mpi="telepathy").model_copy(update={"nodes": 5})
    failed = {c.name: c.detail for c in check(wrong, time_limit_s=3600, with_job=False) if c.passed is False}
    assert failed["partition"] == "short of 4 nodes, and the cluster file says 5"
    assert "time limit" in failed["a job of one node"]
    assert "srun has no telepathy" in failed["MPI plugin"]
    assert "cannot be made" in failed["runs folder"]
    assert not (tmp_path / "no").exists()


def test_slurm_nodes_that_are_not_as_the_cluster_file_says(tmp_path: Path) -> None:
    """No scratch folder, and InfiniBand without the memory that it locks."""
    cluster = _cluster(tmp_path)
    paths = cluster.paths.model_copy(update={"scratch": "/no/such/scratch"})
    cluster = cluster.model_copy(update={"paths": paths, "env": {"NCCL_IB_HCA": "mlx5_0"}})
    found = {c.name: c for c in check(cluster, time_limit_s=3600, with_job=True)}
    assert found["scratch folder"].passed is False
    assert found["scratch folder"].detail.startswith("/no/such/scratch does not exist or cannot be written on ")
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] != resource.RLIM_INFINITY:
        assert found["locked memory"].passed is False
