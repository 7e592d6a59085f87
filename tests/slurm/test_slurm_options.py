"""What a cluster file may add to a job's options, compared with the real sbatch: it prints how it read each one."""

from __future__ import annotations

import functools
import re
import string
from pathlib import Path

import pytest

from colosseum.launch.runs.submit import prepare
from colosseum.launch.slurm import job_script
from colosseum.recipe.load import load
from colosseum.recipe.schema import Recipe
from tests.slurm.conftest import DevSlurm

ALONE = {"j": "job-name", "k": "kill-on-invalid-dep", "l": "licenses"}
"""The only option with its letter: sbatch lists no possibilities."""
VALUES = dict(
    word.split("=", 1)
    for word in [
        "account=x",
        "acctg-freq=30",
        "array=0-1",
        "batch=x",
        "bb=x",
        "bbf=/x",
        "begin=now+1hour",
        "chdir=/tmp",
        "cluster=x",
        "cluster-constraint=x",
        "clusters=x",
        "comment=x",
        "constraint=x",
        "container=/x",
        "context=x",
        "core-spec=1",
        "cores-per-socket=1",
        "cpu-freq=high",
        "cpus-per-gpu=1",
        "cpus-per-task=2",
        "deadline=now+2hours",
        "delay-boot=1",
        "dependency=afterok:1",
        "distribution=cyclic",
        "error=/tmp/x",
        "exclude=n8",
        "exclusive=user",
        "export=NONE",
        "export-file=3",
        "extra-node-info=2:4:1",
        "gid=0",
        "gpu-bind=closest",
        "gpu-freq=low",
        "gpus=3",
        "gpus-per-node=3",
        "gpus-per-socket=3",
        "gpus-per-task=3",
        "gres=gpu:3",
        "gres-flags=enforce-binding",
        "hint=nomultithread",
        "input=/tmp/x",
        "job-name=x",
        "kill-on-invalid-dep=yes",
        "licenses=x",
        "mail-type=END",
        "mail-user=x",
        "mcs-label=x",
        "mem=3G",
        "mem-bind=local",
        "mem-per-cpu=3G",
        "mem-per-gpu=3G",
        "mincpus=3",
        "network=x",
        "nice=3",
        "nodefile=/etc/hostname",
        "nodelist=n[1-3]",
        "nodes=3",
        "ntasks=3",
        "ntasks-per-core=3",
        "ntasks-per-gpu=3",
        "ntasks-per-node=3",
        "ntasks-per-socket=3",
        "ntasks-per-tres=3",
        "open-mode=truncate",
        "output=/tmp/x",
        "partition=x",
        "power=level",
        "prefer=x",
        "priority=3",
        "profile=task",
        "propagate=CORE",
        "qos=x",
        "reservation=x",
        "signal=2",
        "sockets-per-node=1",
        "switches=3",
        "tasks-per-node=3",
        "thread-spec=1",
        "threads-per-core=1",
        "time=3",
        "time-min=3",
        "tmp=3",
        "uid=0",
        "wait-all-nodes=1",
        "wckey=x",
        "wrap=true",
    ]
)
"""A value of each option that takes one."""
UNSEEN = {"requeue", "test-only"}
"""What the job or the command of this test has already."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The header of a job that uses all of the cluster file's own fields."""
    words = ["switches=2", "switches_wait=12h", "account=a", "qos=q", "reservation=r", "constraint=c", "exclude=[n9]"]
    overrides = [f"cluster.slurm.{word}" for word in words]
    recipe = load("colosseum-355b/cpt-16k-expand", overrides, cluster="dgx-h100").recipe
    script = prepare(recipe, Path("/data")).script
    return [line for line in script.splitlines() if line.startswith("#SBATCH")]


def options(slurm: DevSlurm) -> set[str]:
    """All that this sbatch knows: of an ambiguous abbreviation it lists the possibilities."""
    found = set(ALONE.values())
    for letter in set(string.ascii_lowercase) - ALONE.keys():
        said = slurm.run("sbatch", "--test-only", f"--{letter}", check=False).stderr
        found |= set(re.findall(r"'--([a-z][a-z-]*)'", said.partition("possibilities:")[2]))
    assert len(found) > 80
    return found


def read_as(slurm: DevSlurm, folder: Path, header: list[str]) -> dict[str, str]:
    """The options as sbatch read them; empty = it refused or did something else."""
    script = folder / "job.sh"
    script.write_text("\n".join(["#!/bin/bash", *header, "true\n"]))
    said = slurm.run("sbatch", "-v", "--test-only", script, check=False).stderr
    return dict(re.findall(r"^sbatch: ([a-z-]+) +: (.*)$", said, re.MULTILINE))


@functools.cache
def _recipe() -> Recipe:
    return load("colosseum-355b/cpt-16k-expand", cluster="dgx-h100").recipe


def is_refused(option: str) -> bool:
    slurm = _recipe().cluster.slurm.model_copy(update={"extra": (option,)})
    cluster = _recipe().cluster.model_copy(update={"slurm": slurm})
    return bool(job_script.faults(_recipe().model_copy(update={"cluster": cluster})))


def test_slurm_reads_every_field_of_the_cluster_file(slurm: DevSlurm, tmp_path: Path, base: list[str]) -> None:
    read = read_as(slurm, tmp_path, base)
    assert read["switches"] == "2@12:00:00"
    names = {line.removeprefix("#SBATCH --").partition("=")[0] for line in base}
    assert names - read.keys() == set()
    assert (read["nodes"], read["ntasks-per-node"], read["mem"]) == ("360", "8", "0?")


def test_slurm_options_that_are_refused_are_those_that_change_the_job(
    slurm: DevSlurm, tmp_path: Path, base: list[str]
) -> None:
    ours = read_as(slurm, tmp_path, base)
    wrong: list[str] = []
    for name in sorted(name for name in options(slurm) if not name.startswith("container-")):  # a plugin's: not printed
        option = f"--{name}={VALUES[name]}" if name in VALUES else f"--{name}"
        read = read_as(slurm, tmp_path, [*base, f"#SBATCH {option}"])
        changed = {key for key, value in ours.items() if read.get(key) != value} | (read.keys() - ours.keys())
        if not is_refused(option):
            # What is let through changes nothing of ours: its own line is all that is new.
            if not read or changed & ours.keys():
                wrong.append(f"{option} is let through and changes {sorted(changed)}")
        elif read and not changed and name not in UNSEEN:
            wrong.append(f"{option} is refused and changes nothing")
    assert wrong == []


def test_slurm_options_are_refused_by_every_name_that_sbatch_takes(slurm: DevSlurm) -> None:
    """Also by each abbreviation that sbatch reads as a refused option."""
    known = options(slurm)
    refused = {name for name in known if is_refused(f"--{name}")}
    assert {"tasks-per-node", "gpus-per-task", "ntasks-per-tres", "time-min", "switches"} <= refused
    assert {"comment", "nice", "mail-user", "licenses", "cpus-per-task"}.isdisjoint(refused)
    let_through = []
    for name in refused:
        for length in range(1, len(name)):
            meant = {name[:length]} & known or {other for other in known if other.startswith(name[:length])}
            if len(meant) == 1 and meant <= refused and not is_refused(f"--{name[:length]}"):
                let_through.append(name[:length])
    assert let_through == []
    assert all(
        map(is_refused, ("-n4", "-n 4", "--nodes 4", "--NODES=4", "-", "--", "--gpus-per-t=1", "--tasks-per-n=1"))
    )
