"""``colosseum align generate-rejected``: the rejected side of preference pairs, by a checkpoint or an endpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colosseum.cli.generate import BatchSize, MaxTokens, Seed, TopP, answers_of, loaded, progress, translator_of
from colosseum.cli.output import Cluster, Json, Runs, document, say, warn

if TYPE_CHECKING:
    from colosseum.data.align.endpoint import Endpoint
    from colosseum.data.align.rejected import Question
    from colosseum.recipe.schema import ChatTokens

SCHEMA = "colosseum.rejected/1"


def generate_rejected(
    data: Annotated[Path, typer.Argument(help="JSONL: chats that end with an answer, or prompts with `chosen`.")],
    out: Annotated[Path, typer.Argument(help="Preference file to write.")],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN[@STEP]|CHECKPOINT", help="The model that answers: your best SFT run."),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Or an OpenAI-compatible endpoint, such as http://localhost:8000/v1."),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model of the endpoint.")] = None,
    key_from: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="Environment variable that holds the endpoint's key.")
    ] = None,
    max_tokens: MaxTokens = 512,
    temperature: Annotated[float, typer.Option(min=0, max=100, help="0: always the likeliest token.")] = 0.7,
    top_p: TopP = 0.95,
    seed: Seed = 1234,
    batch_size: BatchSize = 8,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Of one request to the endpoint.")] = 600,
    runs: Runs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Write preference pairs: the answer of the data is chosen, that of a model rejected.

    A call that was interrupted goes on where it stood when it is given again. Answers that are empty or the chosen one
    are left out.
    """
    from colosseum.data.align.rejected import kept, read_questions, write_pairs
    from colosseum.errors import Fault, RefusedInput

    if out.exists() or out.is_symlink():
        raise RefusedInput([Fault(path="OUT", value=str(out), rule="already exists", where="command line")])
    if (source is None) == (endpoint is None) or (endpoint is None) != (model is None):
        raise RefusedInput("give --from RUN|CHECKPOINT, or --endpoint URL with --model NAME")
    questions = read_questions(data)
    settings = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    answerer: _Checkpoint | _Remote
    if source is not None:
        if key_from is not None:
            raise RefusedInput("--key-from needs --endpoint")
        answerer = _Checkpoint(source, runs, cluster, data, questions)
    else:
        answerer = _Remote(_endpoint(str(endpoint), str(model), key_from, timeout))
    with kept(out, [_digest(data), answerer.identity, settings]) as answers:
        missing = [q for q in questions if q.row not in answers.found]
        show = progress(len(questions))
        if missing:
            for row, text, finish in answerer.answers(missing, settings, batch_size):
                answers.add(row, text, finish)
                show(len(answers.found))
        written = write_pairs(out, questions, answers, answerer.tokens)
    if as_json:
        figures = {"pairs": written.pairs, "left_out": written.same, "cut": written.cut}
        document({"schema": SCHEMA, "file": str(out), **figures})
        return
    say(f"{out}: {written.pairs:,} pairs")
    if written.same:
        say(f"left out: {written.same:,} rows whose answer is empty or the chosen one")
    if written.cut:
        say(f"{written.cut:,} rejected answers end at --max-tokens {max_tokens:,}")


class _Checkpoint:
    """A checkpoint of ours answers."""

    def __init__(
        self, source: str, runs: Path | None, cluster: str | None, data: Path, questions: list[Question]
    ) -> None:
        from colosseum.cli.checkpoint_hf import checkpoint_of, needs_torch
        from colosseum.data.align.jsonl import BadRow
        from colosseum.data.align.prompts import refused
        from colosseum.recipe.schema import ChatTokens
        from colosseum.rundir import CHECKPOINT_MARK

        self._folder = checkpoint_of(source, runs, cluster)
        needs_torch()
        self._translator = translator_of(self._folder)
        template = self._translator.dialect.template
        self.tokens = template if isinstance(template, ChatTokens) else ChatTokens()
        self.identity = _digest(self._folder / CHECKPOINT_MARK)
        self._ids = {}
        for question in questions:
            try:
                self._ids[question.row] = self._translator.ids(question.prompt)
            except BadRow as bad:
                raise refused(data, question.row, bad) from bad

    def answers(
        self, questions: list[Question], settings: dict[str, Any], batch_size: int
    ) -> Iterator[tuple[int, str, str]]:
        ids = {q.row: self._ids[q.row] for q in questions}
        with loaded(self._folder, self._translator, as_trained=False) as engine:
            for row, answer in answers_of(engine, self._translator, ids, settings, batch_size):
                yield row, answer["generated"], answer["finish"]


class _Remote:
    """An endpoint answers, several questions at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        from colosseum.recipe.schema import ChatTokens

        self._endpoint = endpoint
        self.tokens: ChatTokens = ChatTokens()
        self.identity = f"{endpoint.url} {endpoint.model}"

    def answers(
        self, questions: list[Question], settings: dict[str, Any], batch_size: int
    ) -> Iterator[tuple[int, str, str]]:
        def ask(question: Question) -> tuple[int, str, str]:
            mine = {**settings, "seed": (settings["seed"] + question.row) % 2**31}
            text, finish = self._endpoint.answer(question.prompt, [self.tokens.turn_start], mine)
            if isinstance(question.prompt, str):
                text = text.removesuffix(self.tokens.end_of_turn)
            return question.row, text, finish

        with ThreadPoolExecutor(batch_size) as pool:
            futures = [pool.submit(ask, question) for question in questions]
            try:
                for future in as_completed(futures):
                    yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _endpoint(url: str, model: str, key_from: str | None, timeout: float) -> Endpoint:
    from colosseum.data.align.endpoint import Endpoint
    from colosseum.errors import Fault, RefusedInput

    key = None
    if key_from is not None:
        key = os.environ.get(key_from)
        if not key or not key.isascii() or not key.isprintable():
            rule = "is not set in the environment, or holds no key (printable ASCII)"
            raise RefusedInput([Fault(path="--key-from", value=key_from, rule=rule, where="command line")])
    found = Endpoint(url=url, model=model, key=key, timeout_s=timeout)
    if found.sends_key_in_clear:
        warn([f"the key of ${key_from} goes to {url} without encryption: use https where others share the network"])
    return found


def _digest(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
