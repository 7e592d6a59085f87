"""``colosseum import-config``: an existing NeMo 1.x YAML or Megatron-LM argument line as a recipe."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from colosseum.cli.output import Json, columns, emit, say, stderr, warn, write_new
from colosseum.engines.importers import import_file, recipe_faults, recipe_text
from colosseum.engines.importing import KINDS, MAX_SHOWN, Imported, refuse

IMPORT_SCHEMA = "colosseum.import/1"


def import_config(
    kind: Annotated[
        Literal["nemo1", "megatron-args"],
        typer.Argument(metavar="nemo1|megatron-args", help="Format of FILE.", show_default=False),
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A YAML file, or a file with arguments, such as a job script.", show_default=False
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", metavar="PATH", help="File to write the recipe to.")] = None,
    hardware: Annotated[str, typer.Option("--hardware", metavar="NAME", help="Hardware group.")] = "h100-sxm",
    accept: Annotated[
        bool, typer.Option("--accept", help="Write the recipe although options that change the training are not in it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read another tool's configuration into a recipe; every option becomes a field or is listed.

    The file is read and never run. Another architecture or task is refused; so are options that change the
    training and have no field, until --accept. The recipe is checked as usual; errors are printed as warnings.
    """
    imported = import_file(kind, file)
    refuse(imported, accepted=accept)
    text = recipe_text(imported, kind, file, hardware)
    faults = recipe_faults(text)
    if out is not None:
        write_new(out, text, "--out")

    def show() -> None:
        if out is None:
            say(text.rstrip("\n"))
        _report(imported)
        warn(f"the recipe is not valid yet: {fault}" for fault in faults)

    findings = [{**asdict(f), "nearest": list(f.nearest)} for f in imported.findings]
    result = {"schema": IMPORT_SCHEMA, "recipe": imported.nested(), "findings": findings, "faults": faults}
    emit(as_json, result, show)


def _report(imported: Imported) -> None:
    console = stderr()
    for kind, meaning in KINDS.items():
        found = [f for f in imported.findings if f.kind == kind]
        if not found:
            continue
        console.print(Text(kind, style="bold").append(f": {meaning}", style="not bold"))
        near = [f"did you mean {' or '.join(f.nearest)}?" if f.nearest else f.reason for f in found]
        rows = [(f.key, str(f.value)[:60], text) for f, text in zip(found, near, strict=True)]
        console.print(columns(rows[:MAX_SHOWN], padding=(0, 2, 0, 2)))
        if len(rows) > MAX_SHOWN:
            console.print(f"  and {len(rows) - MAX_SHOWN:,} more")
