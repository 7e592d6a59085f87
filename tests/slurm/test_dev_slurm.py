"""scripts/dev-slurm is a Slurm one can rely on in the other tests."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from colosseum.launch.slurm.answers import accounts
from tests.slurm.conftest import DEV_SLURM, DevSlurm


def test_slurm_runs_tasks_on_two_nodes_with_their_gpus(slurm: DevSlurm, tmp_path: Path) -> None:
    show = "srun -l sh -c 'echo $SLURM_PROCID $(hostname) $CUDA_VISIBLE_DEVICES'"
    job = slurm.submit(tmp_path, "-N2", "--ntasks-per-node=2", "--gpus-per-node=8", "-oout", "--wrap", show)
    assert slurm.wait(job) == "COMPLETED"
    nodes = slurm.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%N").stdout.strip()
    first, second = slurm.run("scontrol", "show", "hostnames", nodes).stdout.split()
    all_gpus = "0,1,2,3,4,5,6,7"
    assert sorted((tmp_path / "out").read_text().splitlines()) == [
        f"{rank}: {rank} {node} {all_gpus}" for rank, node in enumerate([first, first, second, second])
    ]


def test_slurm_takes_the_full_machine_and_no_more(slurm: DevSlurm) -> None:
    full = ("sbatch", "--test-only", "-pfull", "--ntasks-per-node=8", "--gpus-per-node=8", "--exclusive", "--wrap=true")
    taken = slurm.run(*full, "-N360")
    assert "using 40320 processors on nodes g[001-360]" in taken.stderr
    refused = slurm.run(*full, "-N361", check=False)
    assert refused.returncode == 1
    assert "Node count specification invalid" in refused.stderr


def test_slurm_passes_container_options_to_the_tasks(slurm: DevSlurm) -> None:
    out = slurm.run("srun", "--container-image=nvcr.io#nvidia/a b", "--no-container-mount-home", "env").stdout
    assert "PYXIS_STUB_CONTAINER_IMAGE=nvcr.io#nvidia/a b\n" in out
    assert "PYXIS_STUB_NO_CONTAINER_MOUNT_HOME=1\n" in out


@pytest.mark.long  # a silent node is noticed after half a minute
def test_slurm_requeues_when_a_node_crashes(slurm_with_accounting: DevSlurm, tmp_path: Path) -> None:
    slurm = slurm_with_accounting
    body = "[ ${SLURM_RESTART_COUNT:-0} = 1 ] && exit 0; touch started; srun sleep 99"
    job = slurm.submit(tmp_path, "-N2", "--requeue", "--open-mode=append", "-oout", "--wrap", body)
    slurm.wait(job, ("RUNNING",))
    while not (tmp_path / "started").exists():
        time.sleep(0.1)
    slurm.dev_slurm("crash", "n2")
    down = subprocess.run([DEV_SLURM, "status"], env=slurm.env, text=True, capture_output=True)
    assert down.returncode == 1
    assert "down slurmd-n2" in down.stdout
    slurm.wait(job, ("PENDING",))
    slurm.dev_slurm("node", "n2")
    assert slurm.wait(job) == "COMPLETED"
    for _ in range(50):  # slurmdbd is told a little later
        states = slurm.run("sacct", "-D", "-X", "-n", "-j", job, "-o", "State").stdout.split()
        if states == ["NODE_FAIL", "COMPLETED"]:
            break
        time.sleep(0.2)
    assert states == ["NODE_FAIL", "COMPLETED"]
    known = accounts(slurm.run("sacct", "--json", f"--jobs={job}").stdout)[job]
    assert (known.phase, known.nodes) == ("completed", "n[1-2]")
    assert "down" not in slurm.dev_slurm("status").stdout


def test_slurm_start_is_repeatable(slurm: DevSlurm) -> None:
    before = slurm.dev_slurm("status").stdout
    assert "down" not in before
    slurm.dev_slurm("start")
    assert slurm.dev_slurm("status").stdout == before
    assert slurm.dev_slurm("env").stdout == f"export SLURM_CONF={slurm.env['SLURM_CONF']}\n"
