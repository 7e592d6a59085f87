"""Which foreign configurations can be read into a recipe, and the file that is made of one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from colosseum.bundle import to_yaml
from colosseum.engines.importing import KINDS, MAX_SHOWN, MISSING, OPEN, Imported
from colosseum.engines.megatron_lm import importer as megatron_lm
from colosseum.engines.nemo1 import importer as nemo1
from colosseum.engines.planned import resolved
from colosseum.engines.registry import engine_of
from colosseum.errors import RefusedInput
from colosseum.recipe.load import load
from colosseum.recipe.scan import read_text

IMPORTERS: Mapping[str, Callable[[str, str], Imported]] = {
    "nemo1": nemo1.from_text,
    "megatron-args": megatron_lm.from_text,
}
"""Text of a file and its name -> recipe data; RefusedInput when the text is no such configuration."""

_HEAD = """# @package _global_
# Imported from {file} ({kind}). Options that it does not set have {engine}'s defaults.
{open}defaults:
  - /hardware: {hardware}          # not in the imported file: choose yours
  - _self_

"""


def import_file(kind: str, file: Path) -> Imported:
    """A foreign configuration; it is read and never run."""
    return IMPORTERS[kind](read_text(file, str(file)), str(file))


def recipe_text(imported: Imported, kind: str, file: Path, hardware: str) -> str:
    """The recipe file: a head that says where it is from, then what was read."""
    left = imported.of(*OPEN, MISSING)
    lines = [f"# Not in this recipe: {_line(f'{f.key} {f.value}')} ({f.reason or KINDS[f.kind]})\n" for f in left]
    named = {"file": _line(file.name), "kind": kind, "engine": imported.engine, "hardware": hardware}
    return _HEAD.format(**named, open="".join(lines[:MAX_SHOWN])) + to_yaml(imported.nested()).decode()


def _line(text: str) -> str:
    """Text of a file for a comment: one line, of characters that can be printed."""
    return "".join(c if c.isprintable() else "?" for c in text)[:200]


def recipe_faults(text: str) -> list[str]:
    """What a recipe file breaks, as sentences; places in it are left out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "imported.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            recipe = resolved(load(str(path)).recipe)
        except RefusedInput as refused:
            return [fault.sentence().partition(" [")[0] for fault in refused.faults]
    return [fault.sentence() for fault in engine_of(recipe.engine).faults(recipe)]
