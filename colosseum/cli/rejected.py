"""``colosseum align generate-rejected``: the rejected side of preference pairs, by a checkpoint or an endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colosseum.cli.checkpoint_hf import checkpoint_of, needs_torch
from colosseum.cli.generate import BatchSize, MaxTokens, Seed, TopP
from colosseum.cli.output import Cluster, Json, Runs, counter, emit, note, refuse_existing, warn
from colosseum.data.align.endpoint import Endpoint, key_in
from colosseum.data.align.rejected import Answerer, EndpointAnswerer, answer_pairs, read_questions
from colosseum.errors import RefusedInput
from colosseum.runtime.generation.answering import CheckpointAnswerer

SCHEMA = "colosseum.rejected/1"


def generate_rejected(
    data: Annotated[Path, typer.Argument(help="JSONL: chats that end with a response, or prompts with `chosen`.")],
    out: Annotated[Path, typer.Argument(help="Preference file to write.")],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN[@STEP]|CHECKPOINT", help="The model that generates: your best SFT run."),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Or an OpenAI-compatible endpoint, such as http://localhost:8000/v1."),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model of the endpoint.")] = None,
    key_from: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="Environment variable with the endpoint's key.")
    ] = None,
    max_tokens: MaxTokens = 512,
    temperature: Annotated[
        float, typer.Option(min=0, max=100, help="Sampling temperature; 0 = always the most likely token.")
    ] = 0.7,
    top_p: TopP = 0.95,
    seed: Seed = 1234,
    batch_size: BatchSize = 8,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Timeout of one request to the endpoint.")
    ] = 600,
    runs: Runs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Write preference pairs: the response of the data is chosen, that of a model rejected.

    Run an interrupted command again to continue it. Responses that are empty or equal to the chosen one are dropped.
    """
    refuse_existing(out, "OUT")
    if (source is None) == (endpoint is None) or (endpoint is None) != (model is None):
        raise RefusedInput("give --from RUN|CHECKPOINT, or --endpoint URL with --model NAME")
    questions = read_questions(data)
    settings = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    answerer: Answerer
    if source is not None:
        if key_from is not None:
            raise RefusedInput("--key-from needs --endpoint")
        folder = checkpoint_of(source, runs, cluster)
        needs_torch()
        answerer = CheckpointAnswerer(folder, note, data, questions)
    else:
        answerer = EndpointAnswerer(_endpoint(str(endpoint), str(model), key_from, timeout))
    written = answer_pairs(out, data, questions, answerer, settings, batch_size, counter())

    figures = {"pairs": written.pairs, "left_out": written.same, "cut": written.cut}
    emit(as_json, {"schema": SCHEMA, "file": str(out), **figures}, lambda: written.text(out, max_tokens))


def _endpoint(url: str, model: str, key_from: str | None, timeout: float) -> Endpoint:
    key = None if key_from is None else key_in(key_from)
    found = Endpoint(url=url, model=model, key=key, timeout_s=timeout)
    if found.sends_key_in_clear:
        warn([f"the key of ${key_from} goes to {url} without encryption: use https where others share the network"])
    return found
