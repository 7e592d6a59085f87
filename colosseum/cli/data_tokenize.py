"""``colosseum data tokenize``: text to a .bin/.idx pair, with its progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from colosseum.cli.output import Json, counter, emit, note, say, warn
from colosseum.data.tokenization.corpus import Corpus, Finished, Progress, Tags, tokenize_corpus
from colosseum.data.tokenization.encoders import find_tokenizer
from colosseum.data.tokenization.rows import texts
from colosseum.data.tokenization.sources import Sources, find_sources
from colosseum.data.tokenizer import train_tokenizer as trained
from colosseum.errors import RefusedInput

LOG_SECONDS = 10
BAR = 20


def tokenize(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders or quoted globs: JSONL (one document per line), parquet, text files (each one"
            " document), .gz and .zst of them, datasets saved by Hugging Face or NeMo Curator."
        ),
    ],
    tokenizer: Annotated[
        Path, typer.Option(help="tokenizer.json, SentencePiece .model, .tiktoken, or a Hugging Face folder.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Prefix of the .bin and .idx files to write.")
    ] = None,
    key: Annotated[str, typer.Option(help="JSONL key or column of the text.")] = "text",
    eod: Annotated[str, typer.Option(help="End-of-document token, appended to each document.")] = "<|endoftext|>",
    max_rejected: Annotated[
        float,
        typer.Option(min=0, max=1, help="Maximum share of rows that cannot be used; they go to .rejected.jsonl."),
    ] = 0.0,
    name: Annotated[str, typer.Option(help="Name of the source, for the manifest.")] = "",
    licence: Annotated[str, typer.Option(help="Licence of the text, for the manifest.")] = "",
    language: Annotated[str, typer.Option(help="Language of the text, for the manifest.")] = "",
    domain: Annotated[str, typer.Option(help="Domain of the text, e.g. code or finance, for the manifest.")] = "",
    train_tokenizer: Annotated[
        int | None,
        typer.Option(metavar="VOCAB", help="First train a byte-level BPE tokenizer of VOCAB ids on the inputs."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    as_json: Json = False,
) -> None:
    """Tokenize text into a .bin/.idx pair for `data.blend`. The same command continues a run that was killed.

    With --train-tokenizer and no --output only the tokenizer is written.
    """
    if output is None and train_tokenizer is None:
        raise RefusedInput("give the output files with --output PREFIX")
    sources = find_sources(inputs)
    _warn_ignored(sources)
    if train_tokenizer is not None:
        trained(texts(sources.files, key), tokenizer, vocab_size=train_tokenizer, eod=eod, force=force)
    found = find_tokenizer(tokenizer, eod)
    result: dict[str, Any] = {
        "schema": "colosseum.tokenized/1",
        "tokenizer": str(found.path),
        "vocab_size": found.vocab_size,
    }
    if output is not None:
        corpus = Corpus(
            sources=sources,
            prefix=output,
            tokenizer=found,
            key=key,
            tags=Tags(name=name, licence=licence, language=language, domain=domain),
            max_rejected=max_rejected,
        )
        start = time.monotonic()
        done = tokenize_corpus(corpus, force=force, on_progress=progress_line(), say=lambda text: warn([text]))
        result |= _result(output, done, time.monotonic() - start)
    emit(as_json, result, lambda: say(_sentences(result)))


def _result(output: Path, done: Finished, time_s: float) -> dict[str, Any]:
    manifest = done.manifest
    return {
        "prefix": str(output),
        "documents": manifest["documents"],
        "tokens": manifest["tokens"],
        "empty_documents": manifest["empty"],
        "rejected_rows": manifest["rejected"],
        "text_bytes": manifest["text_bytes"],
        "engine": manifest["engine"],
        "already": done.already,
        "time_s": round(time_s, 3),
    }


def _sentences(result: dict[str, Any]) -> str:
    lines = [f"{result['tokenizer']}: vocabulary of {result['vocab_size']:,} ids"]
    if "prefix" in result:
        prefix = result["prefix"]
        lines.append(
            f"{prefix}.bin and .idx: {result['documents']:,} documents, {result['tokens']:,} tokens"
            f" from {result['text_bytes'] / 1e6:,.1f} MB of text"
        )
        if result["empty_documents"]:
            lines[-1] += f" ({result['empty_documents']:,} empty documents skipped)"
        if result["rejected_rows"]:
            lines.append(f"{prefix}.rejected.jsonl: {result['rejected_rows']:,} rows that could not be used, and why")
        if result["already"]:
            lines.append("the dataset was complete already; nothing was written")
        else:
            rate = result["text_bytes"] / 1e6 / max(1e-3, result["time_s"])
            lines.append(f"{result['time_s']:,.1f} s, {rate:,.1f} MB/s, encoded by {result['engine']}")
    return "\n".join(lines)


def _warn_ignored(sources: Sources) -> None:
    if sources.ignored:
        names = ", ".join(path.name for path in sources.ignored[:3])
        warn([f"{len(sources.ignored):,} files have no suffix of a known format and are not read: {names}"])


def progress_line() -> Callable[[Progress], None]:
    """A bar on a terminal; in a log, a line every ten seconds."""
    write, start, first = counter(), time.monotonic(), None
    last = start

    def show(progress: Progress) -> None:
        nonlocal last, first
        now = time.monotonic()
        first = progress.bytes_done if first is None else first
        text = bar(progress, max(0, progress.bytes_done - first), now - start)
        write(text if progress.bytes_done < progress.bytes_total else "")
        if now - last >= LOG_SECONDS:
            last = now
            note(text)

    return show


def bar(progress: Progress, since: int, time_s: float) -> str:
    """The progress in less than 80 columns.

    Args:
        since: bytes read since this process started; what an earlier one did says nothing of the speed.
    """
    share = progress.bytes_done / max(1, progress.bytes_total)
    rate = since / max(1e-3, time_s)
    left = (progress.bytes_total - progress.bytes_done) / rate if rate else None
    full = int(share * BAR)
    text = f"[{'#' * full}{'-' * (BAR - full)}] {share:4.0%} {rate / 1e6:7,.1f} MB/s"
    if left is not None:
        minutes, seconds = divmod(int(left), 60)
        hours, minutes = divmod(minutes, 60)
        text += f"  ETA {hours}:{minutes:02}:{seconds:02}"
    text += f"  {progress.tokens / 1e6:,.1f} M tokens"
    return text + (f", {progress.rejected:,} rejected" if progress.rejected else "")
