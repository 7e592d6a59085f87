"""``colosseum data lint`` and ``data mask``: alignment files, judged and looked at before any GPU is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colosseum.cli.output import Json, document, say, stdout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from colosseum.data.align.encode import Spec
    from colosseum.data.align.lint import Report
    from colosseum.data.align.rows import Kind
    from colosseum.data.align.view import View

DEFAULT_SEQ_LENGTH = 4096
File = Annotated[Path, typer.Argument(help="JSONL file of chats, prompts with responses, or preference pairs.")]
SeqLength = Annotated[int, typer.Option(min=1, help="Inputs of a sequence: rows may have one token more.")]
Eod = Annotated[str, typer.Option(help="End-of-document token of the tokenizer.")]
Template = Annotated[
    bool, typer.Option("--chat-template", help="The Hugging Face chat template beside the tokenizer, not chat_tokens.")
]


def lint(
    file: File,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json: also judge lengths, masks and prefixes.")
    ] = None,
    seq_length: SeqLength = DEFAULT_SEQ_LENGTH,
    gbs: Annotated[int | None, typer.Option(min=1, help="Global batch: say the steps of an epoch.")] = None,
    near: Annotated[
        float, typer.Option(min=0, max=1, help="Edit distance, as a share, up to which answers hardly differ.")
    ] = 0.05,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="FINDING=SHARE", help="Share of rows that a finding may have, e.g. cut=0.2. Repeatable."),
    ] = None,
    eod: Eod = "<|endoftext|>",
    chat_template: Template = False,
    as_json: Json = False,
) -> None:
    """Check an alignment file, all rows, before any GPU. Exit code 4 if a finding has more rows than its limit."""
    from colosseum.data.align.lint import LIMITS
    from colosseum.data.align.lint import lint as check
    from colosseum.errors import RunFailed

    limits = {**LIMITS, **dict(_limit(word, LIMITS) for word in limit or ())}
    spec = None if tokenizer is None else lambda kind: _spec(kind, tokenizer, eod, chat_template, seq_length)
    report = check(file, spec=spec, near=near)
    over = report.over(limits)
    if as_json:
        document(report.as_json(limits, gbs))
        if over:
            raise typer.Exit(RunFailed.exit_code)
        return
    _print(report, limits, gbs)
    if over:
        raise RunFailed(f"{file}: over the limit: {', '.join(over)}")


def mask(
    file: File,
    row: Annotated[int, typer.Option(min=1, help="Line of the file, from 1, as lint names it.")],
    tokenizer: Annotated[Path, typer.Option(help="tokenizer.json file.")],
    seq_length: SeqLength = DEFAULT_SEQ_LENGTH,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page instead.")] = None,
    eod: Eod = "<|endoftext|>",
    chat_template: Template = False,
) -> None:
    """Show a row as training sees it: which tokens are trained, context, padding or cut off."""
    from colosseum.atomic import write_whole
    from colosseum.data.align.encode import Encoder
    from colosseum.data.align.jsonl import BadRow, read_lines
    from colosseum.data.align.rows import kind_of
    from colosseum.data.align.view import as_html, look
    from colosseum.errors import EnvironmentFault, RefusedInput

    line = next((x for x in read_lines(file) if x.number >= row and not isinstance(x.content, BadRow)), None)
    kind = None if line is None else kind_of(line.content)  # type: ignore[arg-type]
    encoder = Encoder(_spec(kind or "chat", tokenizer, eod, chat_template, seq_length))
    views = look(file, row, encoder)
    if html is None:
        for view in views:
            _show(view)
        return
    if html.exists():
        raise RefusedInput(f"{html} exists; name another file")
    try:
        write_whole(html, as_html(views, f"{file.name}, row {row}").encode())
    except OSError as error:
        raise EnvironmentFault(f"cannot write {html}: {error.strerror}") from error
    say(f"{html}: " + "; ".join(view.sentence() for view in views))


def _spec(kind: Kind, tokenizer: Path, eod: str, chat_template: bool, seq_length: int) -> Spec:
    from colosseum.data.align.encode import Spec
    from colosseum.data.align.hf_template import read_hf_template
    from colosseum.recipe.schema import ChatTokens

    template = read_hf_template(tokenizer) if chat_template else ChatTokens()
    return Spec(kind=kind, tokenizer=tokenizer, eod=eod, template=template, seq_length=seq_length)


def _limit(word: str, known: Mapping[str, float | None]) -> tuple[str, float]:
    from difflib import get_close_matches

    from colosseum.errors import Fault, RefusedInput

    code, _, share = word.partition("=")
    try:
        value = float(share)
    except ValueError:
        value = -1.0
    if code not in known:
        near = tuple(get_close_matches(code, known, n=3)) or tuple(known)
        raise RefusedInput([Fault(path="--limit", value=word, rule=f"no finding is called {code!r}", nearest=near)])
    if not 0 <= value <= 1:
        rule = "must be FINDING=SHARE with a share from 0 to 1"
        raise RefusedInput([Fault(path="--limit", value=word, rule=rule, nearest=(f"{code}=0.05",))])
    return code, value


def _print(report: Report, limits: Mapping[str, float | None], gbs: int | None) -> None:
    from rich.markup import escape
    from rich.table import Table

    from colosseum.data.align.lint import MEANING

    console = stdout()
    for sentence in _figures(report, gbs):
        console.print(escape(sentence))
    over = set(report.over(limits))
    if not report.findings:
        console.print("nothing found")
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("finding", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("limit", justify="right", no_wrap=True)
    table.add_column("what it is; first rows", overflow="fold")
    for code, found in sorted(report.findings.items(), key=lambda f: (f[0] not in over, limits[f[0]] is None, f[0])):
        limit = limits[code]
        first = "; ".join(f"{line}: {reason}" if reason else str(line) for line, reason in found.examples)
        style = "bold red" if code in over else "dim" if limit is None else ""
        allowed = "note" if limit is None else f"{limit:.0%}"
        table.add_row(code, f"{found.rows:,}", allowed, escape(f"{MEANING[code]}. Rows {first}"), style=style)
    console.print(table)


def _figures(report: Report, gbs: int | None) -> Sequence[str]:
    told = [f"{report.file}: {report.rows:,} rows of kind {report.kind or 'unknown'}"]
    if (counts := report.counts) is not None:
        share = counts.trained_tokens / max(1, counts.tokens)
        told.append(f"{counts.sentence()}; longest {report.longest:,} tokens")
        told.append(f"{counts.tokens:,} tokens, {counts.trained_tokens:,} trained ({share:.1%})")
    if report.pairs:
        unit = "characters" if counts is None else "tokens"
        told.append(
            f"chosen is longer in {report.longer_chosen / report.pairs:.0%} of pairs; mean"
            f" {report.chosen_size / report.pairs:.1f} against {report.rejected_size / report.pairs:.1f} {unit}"
        )
    if report.silent_roles:
        told.append(f"named in mask and never speaking: {', '.join(report.silent_roles)}")
    if gbs is not None:
        steps, left = divmod(report.usable, gbs)
        told.append(f"an epoch at gbs {gbs:,}: {steps:,} steps, {left:,} samples left over")
    return told


def _show(view: View) -> None:
    from rich.text import Text

    from colosseum.data.align.view import as_text

    styles = {"trained": "black on green", "context": "dim", "padding": "dim italic", "cut": "red strike"}
    marks = {"trained": ("⟦", "⟧"), "padding": ("⟨", "⟩"), "cut": ("✂", "")}
    console = stdout()
    console.print(view.sentence(), style="bold")
    text = Text()
    for state, shown in as_text(view):
        before, after = marks.get(state, ("", ""))
        # Marks as well as colours: a pipe, a log and some eyes have no colours.
        text.append(f"{before}{shown.replace('⏎', '⏎' + chr(10))}{after}", style=styles[state])
    console.print(text, soft_wrap=False)
