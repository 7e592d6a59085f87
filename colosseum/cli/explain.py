"""``colosseum explain RECIPE [KEY]``: a field's value, every place that set it, who reads it, its names elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from colosseum.cli.output import Cluster, Json, document, stdout, warn
from colosseum.cli.words import complete

if TYPE_CHECKING:
    from colosseum.recipe.describe import FieldDoc
    from colosseum.recipe.load import Loaded

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="RECIPE [KEY] [KEY=VALUE]...",
        help="A recipe, a dotted field or section (all when left out), and overrides.",
        autocompletion=complete,
        show_default=False,
    ),
]


def explain(words: Words, cluster: Cluster = None, as_json: Json = False) -> None:
    """Explain a field: its value, every place that set it, who reads it, its name in other engines.

    With a section, or without a key, a table of fields.
    """
    from colosseum.recipe.describe import catalogue
    from colosseum.recipe.load import load

    name, key, overrides = _split(words)
    loaded = load(name, overrides, cluster=cluster)
    warn(loaded.warnings)
    values = _values(loaded)
    docs = {path: doc for path, doc in catalogue().items() if path in values}
    chosen = _chosen(key, docs)
    if as_json:
        fields = [_entry(docs[path], loaded, values[path]) for path in chosen]
        document({"schema": "colosseum.explanation/1", "recipe": name, "fields": fields})
    elif key is not None and chosen == [key]:
        _show_one(docs[key], loaded, values[key])
    else:
        _show_table([docs[path] for path in chosen], values)


def _split(words: list[str]) -> tuple[str, str | None, list[str]]:
    from colosseum.errors import Fault, RefusedInput

    plain = [w for w in words if "=" not in w and not w.startswith("~")]
    if not plain:
        raise RefusedInput("give a RECIPE: a shipped one (`colosseum recipes` lists them) or a file ending in .yaml")
    if len(plain) > 2:
        rule = "give at most one RECIPE and one KEY"
        raise RefusedInput([Fault(path="", value=plain[2], rule=f"{plain[2]!r}: {rule}", where="command line")])
    return plain[0], plain[1] if len(plain) == 2 else None, [w for w in words if w not in plain]


def _values(loaded: Loaded) -> dict[str, Any]:
    """Values by path; a section that is null counts as a field, its fields do not."""
    found: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict) and value and path != "cluster.env":
            for key, item in value.items():
                walk(item, f"{path}.{key}" if path else key)
        else:
            found[path] = value

    walk(loaded.recipe.as_data(), "")
    return found


def _chosen(key: str | None, docs: dict[str, FieldDoc]) -> list[str]:
    from colosseum.errors import Fault, RefusedInput
    from colosseum.recipe.override import nearest

    chosen = [path for path in docs if key is None or path == key or path.startswith(f"{key}.")]
    if not chosen:
        near = nearest(str(key), docs)
        raise RefusedInput(
            [Fault(path="KEY", value=key, rule="this recipe has no such field", nearest=near, where="command line")]
        )
    return chosen


def _entry(doc: FieldDoc, loaded: Loaded, value: Any) -> dict[str, Any]:
    from colosseum.engines.fields import names_of
    from colosseum.recipe.compare import kind_of
    from colosseum.recipe.describe import READERS

    names = names_of(doc.path)
    return {
        "path": doc.path,
        "value": value,
        "legal": doc.legal,
        "default": _plain(doc.default),
        "required": doc.required,
        "meaning": doc.meaning,
        "changes": kind_of(doc.path),
        "read_by": READERS[doc.section],
        "set_by": [{"value": _plain(s.value), "where": s.where} for s in loaded.origins.get(doc.path, ())],
        "names": dict(names.names),
        "note": names.note,
    }


def _plain(value: Any) -> Any:
    """A default as JSON can hold it."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    return value if isinstance(value, str | int | float | bool | dict | None) else str(value)


def text_of(value: Any) -> str:
    """A value as YAML would write it, on one line."""
    import yaml

    line: str = yaml.safe_dump(_plain(value), default_flow_style=True, width=10**6, allow_unicode=True)
    return line.removesuffix("\n").removesuffix("\n...")


def _show_one(doc: FieldDoc, loaded: Loaded, value: Any) -> None:
    from rich.table import Table

    from colosseum.engines.fields import COLUMNS, names_of
    from colosseum.recipe.compare import KINDS, kind_of
    from colosseum.recipe.describe import READERS

    out = stdout()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def row(name: str, text: str) -> None:
        from rich.text import Text

        table.add_row(name, Text(text))

    row(doc.path, text_of(value))
    if doc.meaning:
        row("meaning", doc.meaning)
    row("legal", doc.legal)
    row("default", "no default: it must be given" if doc.required else text_of(doc.default))
    settings = loaded.origins.get(doc.path, ())
    for number, setting in enumerate(settings, 1):
        row("set by" if number == 1 else "", f"{number}. {setting.where}: {text_of(setting.value)}")
    if not settings:
        row("set by", "not set: the default applies")
    kind = kind_of(doc.path)
    row("a change is", f"{kind}: {KINDS[kind]}")
    row("read by", READERS[doc.section])
    names = names_of(doc.path)
    for column, title in COLUMNS.items():
        row(title, _cell(names.names[column]))
    if names.note:
        row("note", names.note)
    out.print(table)


def _cell(cell: str) -> str:
    if cell == "-":
        return "has no such setting"
    if cell == ".":
        return "not applicable"
    if cell.startswith("+"):
        return f"{cell[1:]} (with + on the command line: not in the template)"
    return cell


def _show_table(docs: list[FieldDoc], values: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    out = stdout()
    table = Table("field", "value", "legal", "meaning", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.columns[0].overflow = table.columns[1].overflow = "fold"
    section = docs[0].section
    for doc in docs:
        if doc.section != section:
            table.add_row()
            section = doc.section
        table.add_row(Text(doc.path), Text(text_of(values[doc.path])), Text(doc.legal), Text(doc.meaning))
    out.print(table)
