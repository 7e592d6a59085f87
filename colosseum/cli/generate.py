"""``colosseum generate``: responses of a checkpoint to a file of prompts or in a chat."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from colosseum.cli.arguments import CheckpointWord
from colosseum.cli.checkpoint_hf import checkpoint_of, needs_torch
from colosseum.cli.output import Cluster, Runs, counter, note, refuse_existing, write_file
from colosseum.data.align.prompts import read_prompts
from colosseum.errors import RefusedInput
from colosseum.runtime.generation.answering import answer_rows, codec_of, ids_of, loaded
from colosseum.runtime.generation.chat import chat_in_terminal

MaxTokens = Annotated[int, typer.Option(min=1, help="Maximum tokens of a response.")]
Temperature = Annotated[
    float, typer.Option(min=0, max=100, help="Sampling temperature; 0 = always the most likely token.")
]
TopP = Annotated[
    float, typer.Option(min=0, max=1, help="Sample from the most likely tokens with this total probability.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, metavar="N", help="The same seed gives the same responses.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Prompts per batch.")]
AsTrained = Annotated[
    bool,
    typer.Option("--as-trained", help="Start the checkpoint's TP x PP ranks on this machine. Default: one process."),
]


def generate(
    source: CheckpointWord,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help='JSONL with {"prompt": text or messages} per line, or an alignment file, whose responses are ignored.'
        ),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Treat text prompts as user messages.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Output file. Default: stdout.")] = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 1234,
    batch_size: BatchSize = 8,
    as_trained: AsTrained = False,
    runs: Runs = None,
    cluster: Cluster = None,
) -> None:
    """Generate responses to a file of prompts, or chat in the terminal.

    Each output row is the prompt's row with `generated`, `finish` (stop or length) and `tokens`.
    """
    if out is not None:
        refuse_existing(out, "--out")
    if prompts is None:
        if out is not None:
            raise RefusedInput("--out needs --prompts FILE")
        if not sys.stdin.isatty():
            raise RefusedInput("give --prompts FILE, or run it in a terminal to chat")
    folder = checkpoint_of(source, runs, cluster)
    needs_torch()
    codec = codec_of(folder)
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    if prompts is None:
        if chat and not codec.can_chat:
            raise RefusedInput("the checkpoint was not trained on chats: omit --chat to continue your text")
        with loaded(folder, codec, note, as_trained=as_trained) as engine:
            chat_in_terminal(engine, codec, sampling)
        return
    rows = read_prompts(prompts, as_chat=chat)
    ids = ids_of(codec, prompts, rows)
    with loaded(folder, codec, note, as_trained=as_trained) as engine:
        answered = answer_rows(engine, codec, rows, ids, sampling, batch_size, counter())
    _write(answered, out)


def _write(rows: list[dict[str, Any]], out: Path | None) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if out is None:
        sys.stdout.write(text)
    else:
        write_file(out, text)
