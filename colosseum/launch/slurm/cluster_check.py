"""Checks a cluster file against the cluster itself: from a login node, and with a job on two nodes."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from colosseum.errors import EnvironmentFault
from colosseum.launch.slurm.commands import call, job_environment
from colosseum.launch.slurm.job_script import gpu_option
from colosseum.recipe.cluster import Cluster
from colosseum.units import slurm_time

COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
MAX_SKEW_S = 2.0
OLD_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 6))"
"""The version check of job.bash."""
JOB_WAITS_S = 50
"""Shorter than the one-minute timeout of Slurm commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check; passed None = it could not be made."""

    name: str
    passed: bool | None
    detail: str


def check(cluster: Cluster, *, time_limit_s: int, with_job: bool) -> list[Check]:
    """All checks, in the order in which a job would meet them.

    Args:
        time_limit_s: of the jobs that are to run.
        with_job: also start one of two nodes, which may wait in the queue.
    """
    if cluster.scheduler == "local":
        return list(_runs_folder(Path(cluster.paths.runs)))
    absent = [name for name in COMMANDS if shutil.which(name) is None]
    if absent:
        return [Check(name="commands", passed=False, detail=f"not found: {', '.join(absent)}; is this a login node?")]
    found = [Check(name="commands", passed=True, detail=", ".join(COMMANDS))]
    found += [*_partition(cluster), *_limits(cluster, time_limit_s), *_mpi(cluster), *_container(cluster)]
    found += _runs_folder(Path(cluster.paths.runs))
    if with_job:
        found += _job(cluster)
    return found


def _options(cluster: Cluster) -> list[str]:
    """Where a job of the cluster goes."""
    return [f"--{name}={value}" for name, value in cluster.slurm.placement()]


def _gpus(cluster: Cluster) -> list[str]:
    asked = gpu_option(cluster.slurm.gpu_request, cluster.gpus_per_node)
    return [] if asked is None else [f"--{asked[0]}={asked[1]}"]


def _partition(cluster: Cluster) -> Iterator[Check]:
    """Does the partition exist, and how large is it?"""
    wanted = cluster.slurm.partition
    done = call("sinfo", "-h", "-o", "%R|%D|%a", *([f"--partition={wanted}"] if wanted else []))
    rows = [line.split("|") for line in done.stdout.split()]
    if done.returncode or not rows:
        yield Check(name="partition", passed=False, detail=f"Slurm has no partition {wanted}; `sinfo` lists them")
        return
    nodes = sum(int(row[1]) for row in rows if row[0] == rows[0][0])
    enough = cluster.nodes is None or nodes >= cluster.nodes
    says = "" if enough else f", and the cluster file says {cluster.nodes:,}"
    up = all(row[2] == "up" for row in rows)
    detail = f"{rows[0][0]} of {nodes:,} nodes{says}" + ("" if up else ", and it is down")
    yield Check(name="partition", passed=enough and up, detail=detail)


def _limits(cluster: Cluster, time_limit_s: int) -> Iterator[Check]:
    """Slurm's check of account, QOS, reservation, constraint, GPUs and time limit; on one node and on all."""
    sizes = [("one node", 1)] + ([("all nodes", cluster.nodes)] if cluster.nodes and cluster.nodes > 1 else [])
    for name, nodes in sizes:
        options = [*_options(cluster), *_gpus(cluster), f"--nodes={nodes}", f"--time={slurm_time(time_limit_s)}"]
        done = call("sbatch", "--test-only", *options, "--wrap=true", env=job_environment())
        lines = [line.split("sbatch: ")[-1] for line in done.stderr.splitlines() if line.strip()]
        detail = lines[-1].removeprefix("error: ") if lines else "Slurm gave no reason"
        yield Check(name=f"a job of {name}", passed=done.returncode == 0, detail=detail)


def _mpi(cluster: Cluster) -> Iterator[Check]:
    wanted = cluster.slurm.mpi
    if wanted is None:
        return
    done = call("srun", "--mpi=list")
    known = [word for word in (done.stdout + done.stderr).replace(",", " ").split() if word.isidentifier()]
    detail = f"{wanted} is one" if wanted in known else f"srun has no {wanted}; `srun --mpi=list` shows what it has"
    yield Check(name="MPI plugin", passed=wanted in known, detail=detail)


def _container(cluster: Cluster) -> Iterator[Check]:
    container = cluster.container
    if container is None:
        return
    knows = "--container-image" in call("srun", "--help").stdout
    yield Check(
        name="pyxis", passed=knows, detail="srun takes --container-image" if knows else "srun has no --container-image"
    )
    for image in dict.fromkeys((*container.images.values(), *filter(None, [container.image]))):
        if image.startswith("/"):
            there = Path(image).is_file()
            yield Check(name="image", passed=there, detail=f"{image} {'is there' if there else 'does not exist'}")
        else:
            detail = f"{image} is pulled by the nodes; cannot be checked from this machine"
            yield Check(name="image", passed=None, detail=detail)
    for mount in container.mounts:
        source = mount.split(":")[0]
        there = Path(source).exists()
        detail = f"{source} {'is there' if there else 'does not exist on this machine'}"
        yield Check(name="mount", passed=there, detail=detail)


def _runs_folder(runs: Path) -> Iterator[Check]:
    if not runs.exists():
        place = runs.absolute().parent
        makeable = place.is_dir() and os.access(place, os.W_OK)
        detail = f"{runs.absolute()} does not exist " + ("yet" if makeable else f"and cannot be made in {place}")
        yield Check(name="runs folder", passed=makeable, detail=detail)
        return
    try:
        probe = runs / f".check-{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        yield Check(name="runs folder", passed=False, detail=f"cannot write in {runs}: {error.strerror}")
        return
    yield Check(name="runs folder", passed=True, detail=f"{runs.absolute()} can be written")


def _job(cluster: Cluster) -> Iterator[Check]:
    """Two nodes read a file that this machine wrote, and report their clocks and python3 version."""
    nodes = 2 if cluster.nodes is None or cluster.nodes > 1 else 1
    runs = Path(cluster.paths.runs).absolute()
    if not runs.is_dir():
        yield Check(name="a job now", passed=None, detail=f"needs {runs}, to check whether the nodes share it")
        return
    probe = runs / f".check-{secrets.token_hex(4)}"
    word = secrets.token_hex(8)
    try:
        probe.write_text(word)
        size = [
            f"--nodes={nodes}",
            f"--ntasks={nodes}",
            "--ntasks-per-node=1",
            "--time=2",
            f"--immediate={JOB_WAITS_S}",
        ]
        python = f"python3 -I -c {shlex.quote(OLD_ENOUGH)} 2> /dev/null && echo yes || echo no"
        show = f'echo "$(cat "$1" 2> /dev/null) $(date +%s.%N) $(hostname) $({python})"'
        command = ["bash", "-c", show, "check", str(probe)]
        began = time.time()
        done = call("srun", *_options(cluster), *size, "--chdir=/", *command, env=job_environment())
        ended = time.time()
    except EnvironmentFault as fault:
        yield Check(name="a job now", passed=None, detail=str(fault))
        return
    finally:
        probe.unlink(missing_ok=True)
    rows = [line.split(" ") for line in done.stdout.splitlines() if line.count(" ") == 3]
    if done.returncode or len(rows) != nodes:
        last = (done.stderr.strip().splitlines() or ["srun gave no reason"])[-1]
        yield Check(name="a job now", passed=None, detail=f"it did not run within {JOB_WAITS_S} s: {last}")
        return
    hosts = ", ".join(row[2] for row in rows)
    yield Check(name="a job now", passed=True, detail=f"ran on {hosts} after {ended - began:.1f} s")
    blind = [row[2] for row in rows if row[0] != word]
    detail = f"{hosts} read what {os.uname().nodename} wrote" if not blind else f"not shared with {', '.join(blind)}"
    yield Check(name="shared runs folder", passed=not blind, detail=detail)
    without = [row[2] for row in rows if row[3] != "yes"]
    detail = "python3 (3.6 or later) is there" if not without else f"no python3 (3.6 or later) on {', '.join(without)}"
    yield Check(name="python3", passed=not without, detail=f"{detail}; job scripts run it")
    skew = max(max(began - float(row[1]), float(row[1]) - ended, 0.0) for row in rows)
    yield Check(
        name="clocks", passed=skew <= MAX_SKEW_S, detail=f"{skew:.1f} s apart at most beyond the job's duration"
    )
