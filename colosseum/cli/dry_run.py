"""``--dry-run``: shows what would be started. Plan and job script; the bundle itself with --out."""

from __future__ import annotations

from pathlib import Path

from rich.console import RenderableType

from colosseum.bundle import write_bundle
from colosseum.cli.output import emit, facts, warn
from colosseum.launch.runs.request import NewRun
from colosseum.launch.runs.submit import warnings
from colosseum.planning.report import Rows, heading_rows, prediction_rows

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
    emit(as_json, result, lambda: _text(new, out))


def _text(new: NewRun, out: Path | None) -> list[RenderableType]:
    compiled = new.compiled
    kept = "" if out is None else f" (bundle kept in {out})"
    return [facts(_rows(new)), f"\n# {compiled.script_name}{kept}", compiled.script.rstrip("\n")]


def _rows(new: NewRun) -> Rows:
    """The plan in a few lines; ``colosseum plan`` prints more."""
    compiled = new.compiled
    rows = heading_rows(new.shown, compiled.recipe, compiled.plan) + prediction_rows(compiled.plan)
    return [*rows, ("recipe hash", str(compiled.manifest["recipe_hash"])[:16])]
