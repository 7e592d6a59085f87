"""``colosseum cluster list``."""

from __future__ import annotations

import os

import typer

from colosseum.cli.output import Json, document, stdout, warn

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """List the clusters you can run on."""


@app.command("list")
def list_clusters(as_json: Json = False) -> None:
    """List cluster files: the shipped ones and your own in ~/.config/colosseum/cluster."""
    from colosseum.errors import RefusedInput
    from colosseum.recipe.load import cluster_names, load

    default = os.environ.get("COLOSSEUM_CLUSTER") or "local"
    found, broken = [], []
    for name in cluster_names():
        try:
            found.append((name, load("generic", cluster=name).recipe.cluster))
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
