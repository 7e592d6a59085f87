"""``colosseum explain RECIPE [KEY]``: a field's value, all places that set it, its readers, its engine names."""

from __future__ import annotations

from typing import Annotated

from colosseum.cli.arguments import plain_and_overrides, words_argument
from colosseum.cli.output import Cluster, Json, columns, emit, facts, stdout, warn
from colosseum.engines.explain import Explained, explained
from colosseum.engines.fields import COLUMNS, cell_text
from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.compare import KINDS
from colosseum.recipe.describe import text_of
from colosseum.recipe.load import load

Words = Annotated[
    list[str],
    words_argument("RECIPE [KEY] [KEY=VALUE]...", "A recipe, a dotted field or section (default: all), and overrides."),
]


def explain(words: Words, cluster: Cluster = None, as_json: Json = False) -> None:
    """Explain a field: its value, every place that sets it, which code reads it, its name in other engines.

    With a section, or without a key, a table of fields.
    """
    plain, overrides = plain_and_overrides(words)
    if not plain:
        raise RefusedInput("give a RECIPE: a shipped one (`colosseum recipes` lists them) or a file ending in .yaml")
    if len(plain) > 2:
        rule = "give at most one RECIPE and one KEY"
        raise RefusedInput([Fault(path="", value=plain[2], rule=f"{plain[2]!r}: {rule}", where="command line")])
    name, key = plain[0], plain[1] if len(plain) == 2 else None
    loaded = load(name, overrides, cluster=cluster)
    warn(loaded.warnings)
    fields = explained(loaded, key)
    result = {"schema": "colosseum.explanation/1", "recipe": name, "fields": [field.as_json() for field in fields]}
    one = fields[0] if [field.doc.path for field in fields] == [key] else None
    emit(as_json, result, lambda: _show_table(fields) if one is None else _show_one(one))


def _show_one(field: Explained) -> None:
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
    stdout().print(facts(rows))


def _show_table(fields: list[Explained]) -> None:
    rows: list[tuple[str, ...]] = []
    for before, field in zip([fields[0], *fields], fields, strict=False):
        doc = field.doc
        if doc.section != before.doc.section:
            rows.append(())
        rows.append((doc.path, text_of(field.value), doc.legal, doc.meaning))
    stdout().print(columns(rows, ("field", "value", "legal", "meaning"), pad_edge=False))
