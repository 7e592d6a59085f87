"""``colosseum cluster list|check``."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from colosseum.cli.output import Json, columns, emit, warn
from colosseum.errors import RefusedInput, RunFailed
from colosseum.recipe.cluster import Cluster as ClusterFile
from colosseum.recipe.load import cluster_names, load_cluster
from colosseum.units import parse_duration_s

MARKS = {True: Text("ok", style="green"), False: Text("FAILED", style="bold red"), None: Text("?", style="yellow")}

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """List the clusters you can run on, and check one."""


@app.command("list")
def list_clusters(as_json: Json = False) -> None:
    """List cluster files: the shipped ones and your own in ~/.config/colosseum/cluster."""
    default = os.environ.get("COLOSSEUM_CLUSTER") or "local"
    found, broken = [], []
    for name in cluster_names():
        try:
            found.append((name, load_cluster(name)))
        except RefusedInput as refused:
            broken.append(f"cluster {name} cannot be used: {refused}")
    warn(broken)
    rows = [{"file": name, **cluster.model_dump(mode="json", by_alias=True)} for name, cluster in found]
    result = {"schema": "colosseum.clusters/1", "default": default, "clusters": rows, "warnings": broken}
    emit(as_json, result, lambda: _table(found, default))


def _table(found: list[tuple[str, ClusterFile]], default: str) -> Table:
    rows = []
    for name, cluster in found:
        nodes = "?" if cluster.nodes is None else f"{cluster.nodes:,}"
        mark = "default" if name == default else ""
        rows.append((name, cluster.scheduler, nodes, str(cluster.gpus_per_node), cluster.paths.runs, mark))
    return columns(rows, ("name", "scheduler", "nodes", "GPUs per node", "runs", ""))


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A cluster file.")],
    job: Annotated[
        bool, typer.Option("--job", help="Also run a two-node job that checks the shared folder and the clocks.")
    ] = False,
    time_limit: Annotated[str, typer.Option("--time", help="Time limit of your jobs.")] = "4h",
    as_json: Json = False,
) -> None:
    """Check a cluster file against the cluster; run it on a login node."""
    from colosseum.launch.slurm import cluster_check

    try:
        limit_s = parse_duration_s(time_limit)
    except ValueError as error:
        raise RefusedInput(f"--time {time_limit}: {error}") from error
    checks = cluster_check.check(load_cluster(name), time_limit_s=limit_s, with_job=job)
    failed = [c.name for c in checks if c.passed is False]
    failure = RunFailed(f"cluster {name} does not match its file: {', '.join(failed)}") if failed else None
    result = {"schema": "colosseum.cluster-check/1", "cluster": name, "passed": not failed}
    result["checks"] = [asdict(c) for c in checks]
    rows = [(MARKS[c.passed], c.name, c.detail) for c in checks]
    emit(as_json, result, lambda: columns(rows), failure)
