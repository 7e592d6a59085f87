"""The light checks on nodes of a Slurm cluster: one short job of one task a node."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colosseum.errors import EnvironmentFault
from colosseum.health import records
from colosseum.launch.slurm.commands import call, job_environment
from colosseum.recipe.cluster import Cluster
from colosseum.records import parse_object

WAITS_S = 60


def check_nodes(cluster: Cluster, nodes: Sequence[str], words: Sequence[str]) -> list[dict[str, Any]]:
    """The report of each node.

    Args:
        nodes: names.
        words: options of ``python -m colosseum.health``.

    Raises:
        EnvironmentFault: the job did not start within a minute, or its python has no colosseum.
    """
    python = str(Path(cluster.venv) / "bin" / "python") if cluster.venv else sys.executable
    places = [f"--{option}={value}" for option, value in cluster.slurm.placement()]
    size = [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", f"--nodelist={','.join(nodes)}"]
    options = [*places, *size, "--time=2", f"--immediate={WAITS_S}", "--chdir=/", "--job-name=preflight"]
    done = call("srun", *options, python, "-I", "-m", "colosseum.health", *words, env=job_environment())
    rows = [parse_object(line) for line in done.stdout.splitlines()]
    found = [report for row in rows if row is not None and (report := records.parse(row)) is not None]
    if not found:
        last = (done.stderr.strip().splitlines() or ["srun gave no reason"])[-1]
        raise EnvironmentFault(f"the nodes were not checked: {last}")
    return sorted(found, key=lambda report: str(report["node"]))


def names(cluster: Cluster, nodes: str | None) -> list[str]:
    """Names in Slurm's short form (``n[1-4]``), or all idle nodes of the cluster's partition.

    Raises:
        EnvironmentFault: Slurm does not answer, or there is none.
    """
    if nodes is None:
        partition = next((value for option, value in cluster.slurm.placement() if option == "partition"), None)
        where = ["-p", partition] if partition else []
        done = call("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", *where)
    else:
        done = call("scontrol", "show", "hostnames", nodes)
    found = sorted(set(done.stdout.split()))
    if done.returncode or not found:
        raise EnvironmentFault(f"no such nodes, or none is idle: {nodes or 'idle nodes'}")
    return found
