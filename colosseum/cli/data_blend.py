"""``colosseum data blend``: from target shares to a recipe's blend."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from colosseum.cli.output import Json, columns, emit, say, stdout, warn, write_new
from colosseum.data.blending.file import read_blend, read_sources
from colosseum.data.blending.picture import write_picture
from colosseum.data.blending.report import Report, report
from colosseum.data.blending.solve import solve
from colosseum.units import format_count

SHOWN_ROWS = 40


def blend(
    file: Annotated[Path, typer.Argument(help="YAML file of the sources, target shares and token budget.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the blend as a recipe's data section.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a chart of the shares by tag (.png, .svg or .pdf).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Turn target shares and a token budget into weights; shows what is drawn, epochs, and drift from the base."""
    read = read_blend(file)
    sources = read_sources(read, file.parent)
    result = report(read, sources, solve(read, sources))
    if out is not None:
        write_new(out, result.as_yaml(), "--out")
    if picture is not None:
        write_picture(result, picture)
    warn(result.warnings)
    emit(as_json, result.as_json(), lambda: _print(result, out, picture))


def _print(result: Report, out: Path | None, picture: Path | None) -> None:
    console = stdout()
    rows = sorted(result.rows, key=lambda row: -row.tokens)
    table = columns(
        [
            (row.path, ", ".join(row.tags), f"{row.weight:.6g}", format_count(row.tokens), f"{row.epochs:.2f}")
            for row in rows[:SHOWN_ROWS]
        ],
        ("source", "tags", "weight", "tokens", "epochs"),
    )
    _right(table, 2)
    console.print(table)
    if len(rows) > SHOWN_ROWS:
        say(f"and {len(rows) - SHOWN_ROWS:,} smaller sources (--json has all)")
    tags = columns(
        [
            (tag, format_count(tokens), f"{share:.2%}", f"{base:.2%}", f"{share - base:+.2%}")
            for tag, (tokens, share, base) in list(result.tags.items())[:SHOWN_ROWS]
        ],
        ("tag", "tokens", "share", "base", "change"),
    )
    _right(tags, 1)
    console.print()
    console.print(tags)
    distance = "infinite: the base lacks a tag" if result.kl_nats is None else f"{result.kl_nats:.4f} nats"
    say(
        f"\n{format_count(result.tokens)} tokens in {result.samples:,} sequences of {result.seq_length:,};"
        f" KL(blend || base) over tags {distance}"
    )
    movers = ", ".join(f"{tag} {before:.1%} to {after:.1%}" for tag, before, after in result.movers())
    console.print(Text(f"largest changes: {movers}"))
    for path in (out, picture):
        if path is not None:
            say(f"{path} written")


def _right(table: object, first: int) -> None:
    for number, column in enumerate(table.columns):  # type: ignore[attr-defined]
        if number >= first:
            column.justify, column.no_wrap = "right", True
