"""``colosseum diff A B``: what differs between two recipes, sorted by what it changes."""

from __future__ import annotations

from typing import Annotated

from rich.text import Text

from colosseum.cli.arguments import plain_and_overrides, words_argument
from colosseum.cli.output import Cluster, Json, columns, emit, stdout, warn
from colosseum.errors import RefusedInput
from colosseum.recipe.compare import ABSENT, KINDS, Difference, differences
from colosseum.recipe.describe import text_of
from colosseum.recipe.load import load

Words = Annotated[
    list[str],
    words_argument(
        "A B [KEY=VALUE]...", "Two recipes; overrides apply to B. With A alone: A compared with A plus the overrides."
    ),
]


def diff(words: Words, cluster: Cluster = None, as_json: Json = False) -> None:
    """Compare two recipes: numerics, performance, operations."""
    plain, overrides = plain_and_overrides(words)
    if len(plain) == 1 and overrides:
        plain *= 2
    if len(plain) != 2:
        raise RefusedInput("give two recipes A and B, or one recipe and overrides to compare it with")
    first, second = load(plain[0], cluster=cluster), load(plain[1], overrides, cluster=cluster)
    warn(dict.fromkeys([*first.warnings, *second.warnings]))
    found = differences(first.recipe, second.recipe)
    rows = [{"path": d.path, "kind": d.kind, "first": d.first, "second": d.second} for d in found]
    result = {"schema": "colosseum.diff/1", "first": plain[0], "second": plain[1], "differences": rows}
    emit(as_json, result, lambda: _show(plain, found))


def _show(names: list[str], found: list[Difference]) -> None:
    out = stdout()
    if not found:
        out.print("no difference")
        return
    labels = names if names[0] != names[1] else [names[0], f"{names[1]} + overrides"]
    for kind, meaning in KINDS.items():
        rows = [(d.path, _text(d.first), Text(_text(d.second), style="bold")) for d in found if d.kind == kind]
        if not rows:
            continue
        out.print(Text(kind, style="bold").append(f": {meaning}", style="not bold"))
        out.print(columns(rows, ("field", *labels), pad_edge=False, padding=(0, 2, 0, 2)))
        out.print()


def _text(value: object) -> str:
    return "" if value == ABSENT else text_of(value)
