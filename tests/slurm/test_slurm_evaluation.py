"""Evaluations as jobs of a real Slurm: an array for a selection, then the result by the same command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from colosseum.checkpoint.hf.importing import import_hf
from tests.evaluation import made
from tests.slurm.conftest import DevSlurm
from tests.slurm.test_slurm_training import COLOSSEUM

ENDS_S = 300


@pytest.mark.long
def test_a_selection_is_a_job_array_and_an_evaluation_a_job(slurm: DevSlurm, tmp_path: Path) -> None:
    """Two checkpoints, of which one always says A: jobs that nobody waits for, and their scores afterwards.

    The single evaluation is of a checkpoint of two ranks on nodes of one GPU.
    """
    for letter in "AD":
        import_hf(made.write_model(tmp_path / f"in-{letter}", letter), tmp_path / letter)
    made.write_run(tmp_path / "runs", "sft", {10: tmp_path / "D", 20: tmp_path / "A"})
    mark = tmp_path / "runs" / "sft" / "checkpoints" / "iter_0000020" / "colosseum.json"
    data = json.loads(mark.read_text())
    mark.write_text(json.dumps({**data, "layout": {**data["layout"], "tp": 2}}))
    choices, exact, _ = made.write_own(tmp_path / "own")
    site = tmp_path / "config" / "colosseum" / "cluster" / "small.yaml"
    site.parent.mkdir(parents=True)
    shipped = (Path(__file__).parents[2] / "conf" / "cluster" / "dev-slurm.yaml").read_text()
    site.write_text(shipped.replace("name: dev-slurm", "name: small").replace("gpus_per_node: 8", "gpus_per_node: 1"))

    def done(*words: str) -> subprocess.CompletedProcess[str]:
        options = ("--no-chat", "--cluster", "small", "--runs", str(tmp_path / "runs"), "--json")
        command = [str(COLOSSEUM), *words, *options]
        env = {**slurm.env, "XDG_CONFIG_HOME": str(tmp_path / "config")}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)

    def said(*words: str) -> dict[str, Any]:
        ended = done(*words)
        assert ended.returncode == 0, ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout)
        return found

    def refused(*words: str) -> str:
        ended = done(*words)
        assert ended.returncode == 2, ended.stderr
        return ended.stderr

    select = ("select", "sft", "--by", choices, "--at-once", "2")
    evaluate = ("evaluate", "sft@20", "--tasks", f"{choices},{exact}", "--time-limit", "10m", "--as-trained")
    jobs = said(*select), said(*evaluate)
    assert jobs[0]["evaluations"] == 2
    assert "still evaluates" in refused(*select), "nothing is submitted twice"
    for job in jobs:
        states = slurm_states(slurm, job["job_id"])
        assert set(states) == {"COMPLETED"}, [p.read_text()[-2000:] for p in (tmp_path / "runs").rglob("logs/*.out")]
    assert len(slurm_states(slurm, jobs[0]["job_id"])) == 2
    assert "NumNodes=2" in slurm.run("scontrol", "show", "job", jobs[1]["job_id"]).stdout
    chosen, scored = said(*select), said(*evaluate)
    assert chosen["candidates"][1]["scores"][0]["mean"] == pytest.approx(2 / 3)
    assert [row["name"] for row in chosen["candidates"]] == ["step 10", "step 20"]
    means = {row["task"]: row["mean"] for row in scored["scores"]}
    assert means == pytest.approx({"choices": 2 / 3, "exact": 1 / 2})


def slurm_states(slurm: DevSlurm, job: str) -> list[str]:
    """States of a job's parts once all have ended."""
    from time import monotonic, sleep

    end = monotonic() + ENDS_S
    while True:
        states = slurm.run("squeue", "-h", "-t", "all", "-r", "-j", job, "-o", "%T").stdout.split()
        if not {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"} & set(states) or monotonic() > end:
            return states
        sleep(0.5)
