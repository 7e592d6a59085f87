"""``colosseum report RUN…``: what runs did, as text, as one HTML page, as pictures and as a table of all steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colosseum.cli.output import Cluster, Json, Runs, emit, write_file
from colosseum.launch.runs.jobs import pick_run, runs_folder
from colosseum.monitor.contents import Contents, read_contents
from colosseum.monitor.summary import summary_text


def report(
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders, names, or unique parts of names.")],
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="One self-contained page.")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="The loss curves.")] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="The loss curves.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="The figures of every logged step.")] = None,
    cluster: Cluster = None,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Report on runs: goodput, lost time by cause, curves beside the plan, memory, restarts. Files are replaced."""
    root = runs_folder(runs, cluster)
    found = [read_contents(pick_run(name, root)) for name in names]
    files = {"html": html, "svg": svg, "png": png, "csv": csv}
    for kind, path in files.items():
        if path is not None:
            _write(kind, path, found)
    written = {kind: str(path) for kind, path in files.items() if path is not None}
    result = {
        "schema": "colosseum.report/1",
        "runs": [{"run": str(one.run.root), **one.goodput.as_json()} for one in found],
        "files": written,
    }
    emit(as_json, result, lambda: [*summary_text(found), *(f"wrote {path}" for path in written.values())])


def _write(kind: str, path: Path, found: list[Contents]) -> None:
    if kind == "html":
        from colosseum.monitor.page import page

        write_file(path, page(found))
    elif kind == "svg":
        from colosseum.monitor.chart import svg as picture
        from colosseum.monitor.curves import loss

        write_file(path, picture(loss(found).chart, width=960, height=400, style=True) + "\n")
    elif kind == "csv":
        from colosseum.monitor.table import csv_of

        write_file(path, csv_of(found))
    else:
        from colosseum.monitor.curves import loss
        from colosseum.monitor.table import save_picture

        save_picture(loss(found).chart, path)
