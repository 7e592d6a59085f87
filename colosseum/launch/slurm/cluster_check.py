"""Checks a cluster file against the cluster itself: from a login node, and with a job on two nodes."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from colosseum.errors import EnvironmentFault
from colosseum.launch.slurm.commands import call, job_environment
from colosseum.launch.slurm.gpus import gpu_option
from colosseum.recipe.cluster import Cluster
from colosseum.units import format_bytes, slurm_time

COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
MAX_SKEW_S = 2.0
OLD_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 6))"
"""The version check of job.bash."""
SCRATCH_BYTES = 1 << 30
"""Compiled kernels of a training run take some hundred MiB."""
JOB_WAITS_S = 50
"""Shorter than the one-minute timeout of Slurm commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check; passed None = it could not be made, or its result says nothing certain."""

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


@dataclass(frozen=True, slots=True)
class _Node:
    """What one node of the job printed."""

    word: str
    """Content of the file that this machine wrote."""
    clock: str
    host: str
    python3: str
    memlock: str
    """Hard limit of locked memory: KiB, or ``unlimited``."""
    scratch: str
    """Free KiB of the scratch folder; ``-`` = no file can be made there; empty = the cluster file names none."""


_SHOW = """scratch=
if [ -n "$2" ]; then
  if file=$(mktemp -p "$2" .check-XXXXXX 2> /dev/null); then
    rm -f "$file"
    scratch=$(df -Pk "$2" | awk 'NR == 2 { print $4 }')
  else
    scratch=-
  fi
fi
python=$(python3 -I -c "$3" 2> /dev/null && echo yes || echo no)
echo "$(cat "$1" 2> /dev/null)|$(date +%s.%N)|$(hostname)|$python|$(ulimit -H -l)|$scratch"
"""


def _job(cluster: Cluster) -> Iterator[Check]:
    """Two nodes read a file that this machine wrote, and report their clocks, python3, limits and scratch folder."""
    nodes = 2 if cluster.nodes is None or cluster.nodes > 1 else 1
    runs = Path(cluster.paths.runs).absolute()
    if not runs.is_dir():
        yield Check(name="a job now", passed=None, detail=f"needs {runs}, to check whether the nodes share it")
        return
    probe = runs / f".check-{secrets.token_hex(4)}"
    word = secrets.token_hex(8)
    try:
        probe.write_text(word)
        size = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--time=2"]
        command = ["bash", "-c", _SHOW, "check", str(probe), cluster.paths.scratch or "", OLD_ENOUGH]
        began = time.time()
        options = [*_options(cluster), *size, f"--immediate={JOB_WAITS_S}", "--chdir=/"]
        done = call("srun", *options, *command, env=job_environment())
        ended = time.time()
    except EnvironmentFault as fault:
        yield Check(name="a job now", passed=None, detail=str(fault))
        return
    finally:
        probe.unlink(missing_ok=True)
    found = [_Node(*line.split("|")) for line in done.stdout.splitlines() if line.count("|") == 5]
    if done.returncode or len(found) != nodes:
        last = (done.stderr.strip().splitlines() or ["srun gave no reason"])[-1]
        yield Check(name="a job now", passed=None, detail=f"it did not run within {JOB_WAITS_S} s: {last}")
        return
    hosts = ", ".join(node.host for node in found)
    yield Check(name="a job now", passed=True, detail=f"ran on {hosts} after {ended - began:.1f} s")
    blind = [node.host for node in found if node.word != word]
    detail = f"{hosts} read what {os.uname().nodename} wrote" if not blind else f"not shared with {', '.join(blind)}"
    yield Check(name="shared runs folder", passed=not blind, detail=detail)
    without = [node.host for node in found if node.python3 != "yes"]
    detail = "python3 (3.6 or later) is there" if not without else f"no python3 (3.6 or later) on {', '.join(without)}"
    yield Check(name="python3", passed=not without, detail=f"{detail}; job scripts run it")
    skew = max(max(began - float(node.clock), float(node.clock) - ended, 0.0) for node in found)
    yield Check(
        name="clocks", passed=skew <= MAX_SKEW_S, detail=f"{skew:.1f} s apart at most beyond the job's duration"
    )
    yield _memlock(cluster, found)
    if cluster.paths.scratch is not None:
        yield _scratch(cluster.paths.scratch, found)


def _memlock(cluster: Cluster, found: Sequence[_Node]) -> Check:
    """RDMA locks the memory that it registers; a cluster file with variables of NCCL's InfiniBand has RDMA."""
    limited = [node for node in found if node.memlock != "unlimited"]
    if not limited:
        return Check(name="locked memory", passed=True, detail="unlimited")
    least = min(limited, key=lambda node: int(node.memlock))
    limit = f"at most {format_bytes(int(least.memlock) * 1024)} on {least.host}"
    detail = f"{limit}; RDMA (InfiniBand, RoCE) needs unlimited: LimitMEMLOCK=infinity for slurmd"
    uses_rdma = any(name.startswith("NCCL_IB_") for name in cluster.env)
    return Check(name="locked memory", passed=False if uses_rdma else None, detail=detail)


def _scratch(folder: str, found: Sequence[_Node]) -> Check:
    """Caches of compiled kernels and of Hugging Face go there (``rank.bash``)."""
    unusable = [node.host for node in found if not node.scratch.isdecimal()]
    if unusable:
        detail = f"{folder} does not exist or cannot be written on {', '.join(unusable)}"
        return Check(name="scratch folder", passed=False, detail=detail)
    least = min(found, key=lambda node: int(node.scratch))
    free = int(least.scratch) * 1024
    detail = f"{folder} can be written; {format_bytes(free)} free on {least.host}"
    enough = free >= SCRATCH_BYTES
    detail += "" if enough else f"; caches need {format_bytes(SCRATCH_BYTES)}"
    return Check(name="scratch folder", passed=enough, detail=detail)
