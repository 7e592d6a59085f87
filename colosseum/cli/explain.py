"""``colosseum explain RECIPE [KEY]``: a field's value, all places that set it, its readers, its engine names."""

from __future__ import annotations

from typing import Annotated

from colosseum.cli.arguments import plain_and_overrides, words_argument
from colosseum.cli.output import Cluster, Json, emit, warn
from colosseum.engines.explain import explained, field_text, fields_text
from colosseum.errors import Fault, RefusedInput
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
    emit(as_json, result, lambda: fields_text(fields) if one is None else field_text(one))
