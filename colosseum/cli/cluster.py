"""``colosseum cluster list|check``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from colosseum.cli.output import Json, document, stdout, warn

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """List the clusters you can run on, and check one."""


@app.command("list")
def list_clusters(as_json: Json = False) -> None:
    """List cluster files: the shipped ones and your own in ~/.config/colosseum/cluster."""
    from colosseum.errors import RefusedInput
    from colosseum.recipe.load import cluster_names, load_cluster

    default = os.environ.get("COLOSSEUM_CLUSTER") or "local"
    found, broken = [], []
    for name in cluster_names():
        try:
            found.append((name, load_cluster(name)))
        except RefusedInput as refused:
            broken.append(f"cluster {name} cannot be used: {refused}")
    warn(broken)
    if as_json:
        rows = [{"file": name, **cluster.model_dump(mode="json", by_alias=True)} for name, cluster in found]
        document({"schema": "colosseum.clusters/1", "default": default, "clusters": rows, "warnings": broken})
        return
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("name", "scheduler", "nodes", "GPUs a node", "runs", ""):
        table.add_column(heading, overflow="fold")
    for name, cluster in found:
        nodes = "?" if cluster.nodes is None else f"{cluster.nodes:,}"
        mark = "default" if name == default else ""
        table.add_row(name, cluster.scheduler, nodes, str(cluster.gpus_per_node), cluster.paths.runs, mark)
    stdout().print(table)


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A cluster file.")],
    job: Annotated[
        bool, typer.Option("--job", help="Also run a two-node job that checks the shared folder and the clocks.")
    ] = False,
    time_limit: Annotated[str, typer.Option("--time", help="Time limit that your jobs will request.")] = "4h",
    as_json: Json = False,
) -> None:
    """Ask the cluster whether its file is right; from a login node."""
    from dataclasses import asdict

    from rich.table import Table
    from rich.text import Text

    from colosseum.errors import RefusedInput, RunFailed
    from colosseum.launch.slurm import cluster_check
    from colosseum.recipe.load import load_cluster
    from colosseum.units import parse_duration_s

    try:
        limit_s = parse_duration_s(time_limit)
    except ValueError as error:
        raise RefusedInput(f"--time {time_limit}: {error}") from error
    checks = cluster_check.check(load_cluster(name), time_limit_s=limit_s, with_job=job)
    failed = [c.name for c in checks if c.passed is False]
    if as_json:
        rows = [asdict(c) for c in checks]
        document({"schema": "colosseum.cluster-check/1", "cluster": name, "passed": not failed, "checks": rows})
        if failed:
            raise typer.Exit(RunFailed.exit_code)
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    marks = {True: Text("ok", style="green"), False: Text("FAILED", style="bold red"), None: Text("?", style="yellow")}
    for c in checks:
        table.add_row(marks[c.passed], c.name, Text(c.detail))
    stdout().print(table)
    if failed:
        raise RunFailed(f"cluster {name} does not match its file: {', '.join(failed)}")
