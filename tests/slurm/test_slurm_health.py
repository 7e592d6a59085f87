"""Prolog, checks of nodes and the exclude list on a real Slurm."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from colosseum.health.exclude import excluded
from colosseum.health.hooks import install
from tests.slurm.conftest import DevSlurm


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of runs, and a local disk for each node but n1, whose disk is gone."""
    for name in ("runs", *(f"disk-n{number}" for number in (2, 3, 4))):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def prolog(slurm: DevSlurm, place: Path) -> Iterator[Path]:
    """The installed Prolog in slurm.conf, which is put back; ``hostname`` is the node's."""
    path, _ = install(place / "hooks", ["--local", "DISK", "--health", str(place / "runs" / "health")])
    path.write_text(path.read_text().replace("DISK", f'{place}/disk-"$(hostname)"'))
    conf = Path(slurm.env["SLURM_CONF"])
    before = conf.read_text()
    conf.write_text(
        before.replace("SchedulerParameters=", "SchedulerParameters=nohold_on_prolog_fail,") + f"Prolog={path}\n"
    )
    slurm.run("scontrol", "reconfigure")
    try:
        yield path
    finally:
        conf.write_text(before)
        slurm.run("scontrol", "reconfigure")
        for node in ("n1", "n2"):
            slurm.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)


def _cli(slurm: DevSlurm, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "colosseum.cli.main", *words, "--runs", str(place / "runs")]
    return slurm.run(*argv, "--cluster", "dev-slurm", cwd=place, check=False)


@pytest.mark.long
def test_the_checks_run_on_the_nodes_of_a_cluster(slurm: DevSlurm, place: Path) -> None:
    began = time.monotonic()
    done = _cli(slurm, place, "preflight", "--nodes", "n[2-3]", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [node["node"] for node in found["nodes"]] == ["n2", "n3"]
    assert time.monotonic() - began < 60
    names = {finding["name"] for finding in found["nodes"][0]["findings"]}
    assert {"cpus", "memory", "clock", "local_disk", "shared_folder"} <= names
    failed = _cli(slurm, place, "preflight", "--nodes", "n4", "--image", str(place / "none.sqsh"))
    assert (failed.returncode, "a check failed on n4" in failed.stderr) == (4, True)
    assert _cli(slurm, place, "preflight", "--nodes", "x9").returncode == 3


@pytest.mark.long
def test_a_node_whose_prolog_fails_is_drained_and_the_job_moves(slurm: DevSlurm, prolog: Path, place: Path) -> None:
    job = slurm.submit(place, "--nodes=1", "--nodelist=n1", "--output=out", "--wrap=hostname")
    end = time.monotonic() + 180  # the job waits for n1, which may have another test's job
    while "drain" not in slurm.run("sinfo", "-h", "-n", "n1", "-o", "%T").stdout:
        assert time.monotonic() < end, slurm.run("sinfo", "-N", "-l").stdout
        time.sleep(0.2)
    slurm.run("scontrol", "update", f"JobId={job}", "ReqNodeList=", check=False)  # the test had asked for n1
    assert slurm.wait(job, timeout_s=180) == "COMPLETED"
    assert (place / "out").read_text().strip() in ("n2", "n3", "n4")
    reports = (place / "runs" / "health" / "n1.jsonl").read_text()
    assert json.loads(reports.splitlines()[0])["passed"] is False
    listed = _cli(slurm, place, "nodes", "--exclude", "--json")
    assert listed.returncode == 0, listed.stderr
    assert json.loads(listed.stdout)["proposed"] == ["n1"]
    assert excluded(place / "runs") == ["n1"]
