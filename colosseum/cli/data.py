"""``colosseum data …``: prepare and check training data."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from colosseum.cli.data_rows import lint, mask
from colosseum.cli.output import Json, emit, note, say
from colosseum.data.documents import read_documents
from colosseum.data.tokenize import tokenize_documents
from colosseum.data.tokenizer import load_tokenizer
from colosseum.data.tokenizer import train_tokenizer as trained
from colosseum.errors import RefusedInput

app = typer.Typer(help="Prepare and check training data.", no_args_is_help=True)


app.command()(lint)
app.command()(mask)


@app.callback()
def _group() -> None:
    """Prepare and check training data."""


@app.command()
def tokenize(
    inputs: Annotated[
        list[Path], typer.Argument(help="JSONL files (one document per line) or plain text files (each one document).")
    ],
    tokenizer: Annotated[Path, typer.Option(help="tokenizer.json file.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Prefix of the .bin and .idx files to write.")
    ] = None,
    key: Annotated[str, typer.Option(help="JSONL key of the text.")] = "text",
    eod: Annotated[str, typer.Option(help="End-of-document token, appended to each document.")] = "<|endoftext|>",
    train_tokenizer: Annotated[
        int | None,
        typer.Option(metavar="VOCAB", help="First train a byte-level BPE tokenizer of VOCAB ids on the inputs."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    as_json: Json = False,
) -> None:
    """Tokenize text into a .bin/.idx pair for `data.blend`.

    With --train-tokenizer and no --output only the tokenizer is written.
    """
    if output is None and train_tokenizer is None:
        raise RefusedInput("give the output files with --output PREFIX")
    result: dict[str, Any] = {"schema": "colosseum.tokenized/1", "tokenizer": str(tokenizer)}
    if train_tokenizer is not None:
        texts = (d.text for d in read_documents(inputs, key))
        trained(texts, tokenizer, vocab_size=train_tokenizer, eod=eod, force=force)
    loaded = load_tokenizer(tokenizer, eod)
    result["vocab_size"] = loaded.vocab_size
    if output is not None:
        start = time.monotonic()
        done = tokenize_documents(read_documents(inputs, key), output, loaded, force=force, on_progress=_progress())
        result |= {
            "prefix": str(output),
            "documents": done.documents,
            "tokens": done.tokens,
            "empty_documents": done.empty,
            "characters": done.characters,
            "time_s": round(time.monotonic() - start, 3),
        }
    emit(as_json, result, lambda: say(_sentences(result)))


def _sentences(result: dict[str, Any]) -> str:
    text = f"{result['tokenizer']}: vocabulary of {result['vocab_size']:,} ids"
    if "prefix" in result:
        text += (
            f"\n{result['prefix']}.bin and .idx: {result['documents']:,} documents, {result['tokens']:,} tokens"
            f" from {result['characters']:,} characters"
        )
        if result["empty_documents"]:
            text += f" ({result['empty_documents']:,} empty documents skipped)"
    return text


def _progress() -> Callable[[int, int], None]:
    """A line on stderr every ten seconds, which reads well in a log as in a terminal."""
    start = last = time.monotonic()

    def show(documents: int, tokens: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 10:
            last = now
            note(f"{documents:,} documents, {tokens:,} tokens, {tokens / (now - start):,.0f} tokens/s")

    return show
