"""``colosseum diff A B``: what differs between two recipes, sorted by what it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from colosseum.cli.output import Cluster, Json, document, stdout, warn
from colosseum.cli.words import complete

if TYPE_CHECKING:
    from colosseum.recipe.compare import Difference

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="A B [KEY=VALUE]...",
        help="Two recipes; overrides apply to B. With A alone: A compared with A plus the overrides.",
        autocompletion=complete,
        show_default=False,
    ),
]


def diff(words: Words, cluster: Cluster = None, as_json: Json = False) -> None:
    """Compare two recipes: numerics, performance, operations."""
    from colosseum.errors import RefusedInput
    from colosseum.recipe.compare import differences
    from colosseum.recipe.load import load

    plain = [w for w in words if "=" not in w and not w.startswith("~")]
    overrides = [w for w in words if w not in plain]
    if len(plain) == 1 and overrides:
        plain *= 2
    if len(plain) != 2:
        raise RefusedInput("give two recipes A and B, or one recipe and overrides to compare it with")
    first, second = load(plain[0], cluster=cluster), load(plain[1], overrides, cluster=cluster)
    warn(dict.fromkeys([*first.warnings, *second.warnings]))
    found = differences(first.recipe, second.recipe)
    if as_json:
        rows = [{"path": d.path, "kind": d.kind, "first": d.first, "second": d.second} for d in found]
        document({"schema": "colosseum.diff/1", "first": plain[0], "second": plain[1], "differences": rows})
        return
    _show(plain, found)


def _show(names: list[str], found: list[Difference]) -> None:
    from rich.table import Table
    from rich.text import Text

    from colosseum.cli.explain import text_of
    from colosseum.recipe.compare import ABSENT, KINDS

    out = stdout()
    if not found:
        out.print("no difference")
        return
    labels = names if names[0] != names[1] else [names[0], f"{names[1]} + overrides"]
    for kind, meaning in KINDS.items():
        rows = [d for d in found if d.kind == kind]
        if not rows:
            continue
        out.print(Text(kind, style="bold").append(f": {meaning}", style="not bold"))
        table = Table("field", *labels, box=None, pad_edge=False, padding=(0, 2, 0, 2))
        for column in table.columns:
            column.overflow = "fold"
        for d in rows:
            cells = ["" if value == ABSENT else text_of(value) for value in (d.first, d.second)]
            table.add_row(Text(d.path), Text(cells[0]), Text(cells[1], style="bold"))
        out.print(table)
        out.print()
