"""One table: every field of a Recipe and its name in every engine (``fields.tsv``). ``explain`` and the docs print it.

A cell is the engine's own key; ``+key`` is one that NeMo 1.x's template lacks; ``(text)`` says how the engine gets the
value otherwise; ``-`` means that the engine does not support it; ``.`` that the field is not applicable to the engine.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

COLUMNS = {
    "nemo1": "NeMo 1.x / NeMo-Aligner",
    "nemo2": "NeMo 2 / megatron-core",
    "megatron-lm": "Megatron-LM",
    "bridge": "Megatron-Bridge",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of one field in the engines."""

    field: str
    names: Mapping[str, str]
    """Column -> cell."""
    note: str


@functools.cache
def table() -> Mapping[str, Names]:
    """Rows by field; a row named ``section.*`` speaks for all fields of the section."""
    text = resources.files("colosseum.engines").joinpath("fields.tsv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return {
        row["field"]: Names(field=row["field"], names={c: row[c] for c in COLUMNS}, note=row["note"] or "")
        for row in rows
    }


def cell_text(cell: str) -> str:
    """A cell as text."""
    if cell == "-":
        return "has no such setting"
    if cell == ".":
        return "not applicable"
    if cell.startswith("+"):
        return f"{cell[1:]} (with + on the command line: not in the template)"
    return cell


def names_of(field: str) -> Names:
    """The row that speaks for a dotted field.

    Raises:
        KeyError: no row does: the table is incomplete.
    """
    rows = table()
    return rows[field] if field in rows else rows[f"{field.split('.')[0]}.*"]
