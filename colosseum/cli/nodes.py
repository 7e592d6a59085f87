"""``colosseum nodes``: the history of the nodes' checks, and the list of those that submissions leave out."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict
from typing import Annotated

import typer

from colosseum.cli.output import Cluster, Json, Runs, emit, note
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.health import history, records
from colosseum.health.exclude import FOLDER, excluded, write_excluded
from colosseum.health.report import nodes_text
from colosseum.launch.runs.jobs import runs_folder


def nodes(
    exclude: Annotated[
        bool, typer.Option("--exclude", help="Make the proposal the list of nodes that submissions leave out.")
    ] = False,
    cluster: Cluster = None,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Show the history of the nodes' checks and propose which of them to exclude."""
    root = runs_folder(runs, cluster)
    folder = root / FOLDER
    if not folder.is_dir():
        raise RefusedInput(f"no node was checked yet: {folder} does not exist (colosseum preflight)")
    try:
        history.update(folder, records.read(folder))
        found = history.nodes(folder)
        proposed = [node.node for node in found if node.exclude]
        if exclude:
            write_excluded(root, proposed)
            note(f"submissions leave out: {', '.join(proposed) or 'none'}")
    except (sqlite3.Error, OSError) as error:
        raise EnvironmentFault(f"{folder}: {error}") from error
    listed = excluded(root)
    rows = [asdict(node) for node in found]
    result = {"schema": "colosseum.nodes/1", "proposed": proposed, "excluded": listed, "nodes": rows}
    emit(as_json, result, lambda: nodes_text(found, listed))
