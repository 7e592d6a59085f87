"""``colosseum import-config``: an existing NeMo 1.x YAML or Megatron-LM argument line as a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from colosseum.cli.output import Json, document, say, stderr, warn

if TYPE_CHECKING:
    from colosseum.engines.importing import Imported

IMPORT_SCHEMA = "colosseum.import/1"
MAX_SHOWN = 200
"""Findings of one kind: nobody reads more, and a table of thousands takes seconds."""
_HEAD = """# @package _global_
# Imported from {file} ({kind}). What it left out has the value that {engine} would have taken.
defaults:
  - /hardware: {hardware}          # not said there: choose yours
  - _self_

"""


def import_config(
    kind: Annotated[
        Literal["nemo1", "megatron-args"],
        typer.Argument(metavar="nemo1|megatron-args", help="What FILE holds.", show_default=False),
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A YAML file, or a file with arguments, such as a job script.", show_default=False
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", metavar="PATH", help="File to write the recipe to.")] = None,
    hardware: Annotated[str, typer.Option("--hardware", metavar="NAME", help="Hardware group.")] = "h100-sxm",
    as_json: Json = False,
) -> None:
    """Read another tool's configuration into a recipe; misspelt, obsolete and unused keys are listed.

    The file is read and never run. The recipe is checked as any other; what it breaks comes out as warnings.
    """
    imported = _read(kind, file)
    text = _recipe(imported, kind, file, hardware)
    faults = _check(text)
    if out is not None:
        _write(out, text)
    if as_json:
        findings = [
            {"key": f.key, "value": f.value, "kind": f.kind, "nearest": list(f.nearest)} for f in imported.findings
        ]
        data = imported.nested()
        document({"schema": IMPORT_SCHEMA, "recipe": data, "findings": findings, "faults": faults})
        return
    if out is None:
        say(text.rstrip("\n"))
    _report(imported)
    warn(f"the recipe is not valid yet: {fault}" for fault in faults)


def _read(kind: str, file: Path) -> Imported:
    from colosseum.engines.importers import IMPORTERS
    from colosseum.recipe.scan import read_text

    return IMPORTERS[kind](read_text(file, str(file)), str(file))


def _recipe(imported: Imported, kind: str, file: Path, hardware: str) -> str:
    from colosseum.bundle import to_yaml

    name = "".join(c if c.isprintable() else "?" for c in file.name)
    head = _HEAD.format(file=name, kind=kind, engine=imported.engine, hardware=hardware)
    return head + to_yaml(imported.nested()).decode()


def _check(text: str) -> list[str]:
    """What the recipe breaks, as sentences."""
    import tempfile

    from colosseum.engines.planned import resolved
    from colosseum.engines.registry import engine_of
    from colosseum.errors import RefusedInput
    from colosseum.recipe.load import load

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "imported.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            recipe = resolved(load(str(path)).recipe)
        except RefusedInput as refused:
            return [fault.sentence().partition(" [")[0] for fault in refused.faults]
    return [fault.sentence() for fault in engine_of(recipe.engine).faults(recipe)]


def _write(out: Path, text: str) -> None:
    from colosseum.errors import EnvironmentFault, Fault, RefusedInput

    try:
        with out.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise RefusedInput([Fault(path="--out", value=str(out), rule="already exists; give another name")]) from None
    except OSError as error:
        raise EnvironmentFault(f"cannot write {out}: {error.strerror}") from error


def _report(imported: Imported) -> None:
    from rich.table import Table
    from rich.text import Text

    from colosseum.engines.importing import KINDS

    console = stderr()
    for kind, meaning in KINDS.items():
        rows: list[Any] = [f for f in imported.findings if f.kind == kind]
        if not rows:
            continue
        console.print(Text(kind, style="bold").append(f": {meaning}", style="not bold"))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for found in rows[:MAX_SHOWN]:
            near = f"did you mean {' or '.join(found.nearest)}?" if found.nearest else ""
            table.add_row(Text(found.key), Text(str(found.value)[:60]), Text(near))
        console.print(table)
        if len(rows) > MAX_SHOWN:
            console.print(f"  and {len(rows) - MAX_SHOWN:,} more")
