"""``colosseum data lint`` and ``data mask``: checks and shows alignment files before any GPU is requested."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from colosseum.cli.output import Json, columns, emit, say, stdout, write_new
from colosseum.data.align.encode import Encoder, Spec
from colosseum.data.align.hf_template import read_hf_template
from colosseum.data.align.jsonl import BadRow, read_lines
from colosseum.data.align.lint import MEANING, Report, limits_of
from colosseum.data.align.lint import lint as linted
from colosseum.data.align.rows import Kind, kind_of
from colosseum.data.align.view import View, as_html, as_text, row_views
from colosseum.errors import RunFailed
from colosseum.recipe.tasks import ChatTokens

DEFAULT_SEQ_LENGTH = 4096
File = Annotated[Path, typer.Argument(help="JSONL file of chats, prompts with responses, or preference pairs.")]
SeqLength = Annotated[int, typer.Option(min=1, help="Maximum inputs of a sequence; rows may have one token more.")]
Eod = Annotated[str, typer.Option(help="End-of-document token of the tokenizer.")]
Template = Annotated[
    bool,
    typer.Option("--chat-template", help="Use the Hugging Face chat template beside the tokenizer, not chat_tokens."),
]


def lint(
    file: File,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json: also check lengths, masks and prefixes.")
    ] = None,
    seq_length: SeqLength = DEFAULT_SEQ_LENGTH,
    gbs: Annotated[int | None, typer.Option(min=1, help="Global batch size: also print the steps of an epoch.")] = None,
    near: Annotated[
        float, typer.Option(min=0, max=1, help="Maximum edit distance, as a share, of nearly identical responses.")
    ] = 0.05,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="FINDING=SHARE", help="Maximum share of rows with a finding, e.g. cut=0.2. Repeatable."),
    ] = None,
    eod: Eod = "<|endoftext|>",
    chat_template: Template = False,
    as_json: Json = False,
) -> None:
    """Check all rows of an alignment file before using any GPU. Exit code 4 if a finding is above its limit."""
    limits = limits_of(limit or ())
    spec = None if tokenizer is None else lambda kind: _spec(kind, tokenizer, eod, chat_template, seq_length)
    report = linted(file, spec=spec, near=near)
    over = report.over(limits)
    failure = RunFailed(f"{file}: over the limit: {', '.join(over)}") if over else None
    emit(as_json, report.as_json(limits, gbs), lambda: _print(report, limits, gbs), failure)


def mask(
    file: File,
    row: Annotated[int, typer.Option(min=1, help="Line of the file, from 1, as in lint.")],
    tokenizer: Annotated[Path, typer.Option(help="tokenizer.json file.")],
    seq_length: SeqLength = DEFAULT_SEQ_LENGTH,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML page instead.")] = None,
    eod: Eod = "<|endoftext|>",
    chat_template: Template = False,
) -> None:
    """Show a row token by token as in training: trained, context, padding or cut off."""
    line = next((x for x in read_lines(file) if x.number >= row and not isinstance(x.content, BadRow)), None)
    kind = None if line is None else kind_of(line.content)  # type: ignore[arg-type]
    encoder = Encoder(_spec(kind or "chat", tokenizer, eod, chat_template, seq_length))
    views = row_views(file, row, encoder)
    if html is None:
        for view in views:
            _show(view)
        return
    write_new(html, as_html(views, f"{file.name}, row {row}"), "--html")
    say(f"{html}: " + "; ".join(view.sentence() for view in views))


def _spec(kind: Kind, tokenizer: Path, eod: str, chat_template: bool, seq_length: int) -> Spec:
    template = read_hf_template(tokenizer) if chat_template else ChatTokens()
    return Spec(kind=kind, tokenizer=tokenizer, eod=eod, template=template, seq_length=seq_length)


def _print(report: Report, limits: Mapping[str, float | None], gbs: int | None) -> None:
    console = stdout()
    for sentence in report.figures(gbs):
        console.print(Text(sentence))
    over = set(report.over(limits))
    if not report.findings:
        console.print("nothing found")
        return
    rows = []
    for code, found in sorted(report.findings.items(), key=lambda f: (f[0] not in over, limits[f[0]] is None, f[0])):
        limit = limits[code]
        first = "; ".join(f"{line}: {reason}" if reason else str(line) for line, reason in found.examples)
        style = "bold red" if code in over else "dim" if limit is None else ""
        allowed = "note" if limit is None else f"{limit:.0%}"
        cells = (code, f"{found.rows:,}", allowed, f"{MEANING[code]}. Rows {first}")
        rows.append([Text(cell, style=style) for cell in cells])
    table = columns(rows, ("finding", "rows", "limit", "what it is; first rows"))
    for column in table.columns[:3]:
        column.no_wrap = True
    for column in table.columns[1:3]:
        column.justify = "right"
    console.print(table)


def _show(view: View) -> None:
    styles = {"trained": "black on green", "context": "dim", "padding": "dim italic", "cut": "red strike"}
    marks = {"trained": ("⟦", "⟧"), "padding": ("⟨", "⟩"), "cut": ("✂", "")}
    console = stdout()
    console.print(view.sentence(), style="bold")
    text = Text()
    for state, shown in as_text(view):
        before, after = marks.get(state, ("", ""))
        # Marks as well as colours: pipes and logs have no colours, and some users cannot see them.
        text.append(f"{before}{shown.replace('⏎', '⏎' + chr(10))}{after}", style=styles[state])
    console.print(text, soft_wrap=False)
