"""A recipe's fields explained: value, legal values, every place that set it, who reads it, its name in each engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from colosseum.console import columns, facts
from colosseum.engines.fields import COLUMNS, Names, cell_text, names_of
from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.compare import KINDS, Kind, kind_of
from colosseum.recipe.describe import READERS, FieldDoc, catalogue, plain, text_of
from colosseum.recipe.load import Loaded
from colosseum.recipe.override import nearest
from colosseum.recipe.provenance import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One field of a loaded recipe."""

    doc: FieldDoc
    value: Any
    set_by: Sequence[Setting]
    """The last one holds; empty = the default."""
    names: Names

    @property
    def changes(self) -> Kind:
        return kind_of(self.doc.path)

    @property
    def read_by(self) -> str:
        return READERS[self.doc.section]

    def as_json(self) -> dict[str, Any]:
        doc = self.doc
        return {
            "path": doc.path,
            "value": self.value,
            "legal": doc.legal,
            "default": plain(doc.default),
            "required": doc.required,
            "meaning": doc.meaning,
            "changes": self.changes,
            "read_by": self.read_by,
            "set_by": [{"value": plain(s.value), "where": s.where} for s in self.set_by],
            "names": dict(self.names.names),
            "note": self.names.note,
        }


def explained(loaded: Loaded, key: str | None) -> list[Explained]:
    """A field, the fields of a section, or all of them.

    Raises:
        RefusedInput: the recipe has no such field.
    """
    values = _values(loaded.recipe.as_data(), "")
    docs = {path: doc for path, doc in catalogue().items() if path in values}
    chosen = [path for path in docs if key is None or path == key or path.startswith(f"{key}.")]
    if not chosen:
        near = nearest(str(key), docs)
        rule = "this recipe has no such field"
        raise RefusedInput([Fault(path="KEY", value=key, rule=rule, nearest=near, where="command line")])
    return [
        Explained(doc=docs[path], value=values[path], set_by=loaded.origins.get(path, ()), names=names_of(path))
        for path in chosen
    ]


def _values(value: Any, path: str) -> dict[str, Any]:
    """Values by path; a section that is null counts as a field, its fields do not."""
    if not isinstance(value, dict) or not value or path == "cluster.env":
        return {path: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _values(item, f"{path}.{key}" if path else key)
    return found


def field_text(field: Explained) -> Table:
    """All that is known of one field."""
    doc, kind = field.doc, field.changes
    rows = [(doc.path, text_of(field.value))]
    if doc.meaning:
        rows.append(("meaning", doc.meaning))
    default = "no default: required" if doc.required else text_of(doc.default)
    rows += [("legal", doc.legal), ("default", default)]
    for number, setting in enumerate(field.set_by, 1):
        rows.append(("set by" if number == 1 else "", f"{number}. {setting.where}: {text_of(setting.value)}"))
    if not field.set_by:
        rows.append(("set by", "not set: the default applies"))
    rows += [("a change is", f"{kind}: {KINDS[kind]}"), ("read by", field.read_by)]
    rows += [(title, cell_text(field.names.names[column])) for column, title in COLUMNS.items()]
    if field.names.note:
        rows.append(("note", field.names.note))
    return facts(rows)


def fields_text(fields: Sequence[Explained]) -> Table:
    """A line for each field."""
    rows: list[tuple[str, ...]] = []
    for before, field in zip([fields[0], *fields], fields, strict=False):
        doc = field.doc
        if doc.section != before.doc.section:
            rows.append(())
        rows.append((doc.path, text_of(field.value), doc.legal, doc.meaning))
    return columns(rows, ("field", "value", "legal", "meaning"), pad_edge=False)
