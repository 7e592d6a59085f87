"""``--dry-run``: shows what would be started. Plan and job script; the bundle itself with --out."""

from __future__ import annotations

from pathlib import Path

from colosseum.bundle import write_bundle
from colosseum.cli.output import emit, facts, stdout, warn
from colosseum.cli.plan_text import Rows, heading_rows, prediction_rows
from colosseum.launch.runs.request import NewRun
from colosseum.launch.runs.submit import warnings

DRY_RUN_SCHEMA = "colosseum.dry-run/1"


def show(new: NewRun, out: Path | None, as_json: bool) -> None:
    """Prints it; ``out`` keeps the bundle."""
    compiled = new.compiled
    found = [*new.warnings, *warnings(compiled)]
    if out is not None:
        write_bundle(out, compiled.files, compiled.manifest, umask=compiled.recipe.cluster.paths.umask)
    warn(found)
    result = {
        "schema": DRY_RUN_SCHEMA,
        "recipe": new.shown,
        "recipe_hash": compiled.manifest["recipe_hash"],
        "plan": compiled.plan.as_json(),
        "script": {"name": compiled.script_name, "text": compiled.script},
        "bundle": None if out is None else str(out),
        "warnings": found,
    }
    emit(as_json, result, lambda: _show(new, out))


def _show(new: NewRun, out: Path | None) -> None:
    compiled, console = new.compiled, stdout()
    console.print(facts(_rows(new)))
    console.print()
    console.out(f"# {compiled.script_name}" + ("" if out is None else f" (bundle kept in {out})"), highlight=False)
    console.out(compiled.script.rstrip("\n"), highlight=False)


def _rows(new: NewRun) -> Rows:
    """The plan in a few lines; ``colosseum plan`` prints more."""
    compiled = new.compiled
    rows = heading_rows(new.shown, compiled.recipe, compiled.plan) + prediction_rows(compiled.plan)
    return [*rows, ("recipe hash", str(compiled.manifest["recipe_hash"])[:16])]
