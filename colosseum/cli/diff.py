"""``colosseum diff A B``: what differs between two recipes, sorted by what it changes."""

from __future__ import annotations

from typing import Annotated

from colosseum.cli.arguments import plain_and_overrides, words_argument
from colosseum.cli.output import Cluster, Json, emit, warn
from colosseum.errors import RefusedInput
from colosseum.recipe.compare import differences, differences_text
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
    name = plain[1] if plain[0] != plain[1] else f"{plain[1]} + overrides"
    found = differences(first.recipe, second.recipe)
    rows = [{"path": d.path, "kind": d.kind, "first": d.first, "second": d.second} for d in found]
    result = {"schema": "colosseum.diff/1", "first": plain[0], "second": plain[1], "differences": rows}
    emit(as_json, result, lambda: differences_text(found, plain[0], name))
