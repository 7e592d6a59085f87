"""Preference pairs with a generated rejected side: reads chats or prompts with a chosen response, writes pairs.

Responses are saved beside the output as they arrive (``OUT.partial``), so that an interrupted call can continue.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from colosseum.atomic import write_whole
from colosseum.data.align.endpoint import Endpoint
from colosseum.data.align.jsonl import BadRow, read_lines
from colosseum.data.align.prompts import Prompt, prompt_of, refused
from colosseum.data.align.rows import ASSISTANT, kind_of, parse_row
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.recipe.tasks import ChatTokens
from colosseum.records import parse_object


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A row that needs a rejected side."""

    row: int
    """1-based line of the file."""
    prompt: Prompt
    pair: dict[str, Any]
    """The output row without ``rejected``."""

    @property
    def chosen(self) -> str:
        """The text of the chosen response."""
        side = self.pair["chosen"]
        return str(
            side if isinstance(side, str) else next(side[0][key] for key in ("value", "content") if key in side[0])
        )

    def with_rejected(self, answer: str, finish: str, tokens: ChatTokens) -> dict[str, Any] | None:
        """The pair; None if the response is empty or equal to the chosen one."""
        side = self.pair["chosen"]
        if isinstance(side, str):
            end = tokens.end_of_turn + tokens.turn_start
            if answer.strip() in ("", side.removesuffix(end).strip()):
                return None
            closed = side.endswith(end) and finish == "stop"
            return {**self.pair, "rejected": answer + (end if closed else "")}
        if answer.strip() in ("", self.chosen.strip()):
            return None
        key = "value" if "value" in side[0] else "content"
        return {**self.pair, "rejected": [{**side[0], key: answer}]}


def read_questions(path: Path) -> list[Question]:
    """Rows of chats, whose last response becomes the chosen one, or of prompts with ``chosen``.

    Raises:
        RefusedInput: the file cannot be read, is empty, or a row has no chosen response or already has a rejected one.
    """
    found = []
    for line in read_lines(path):
        try:
            if isinstance(line.content, BadRow):
                raise line.content
            pair = _pair(line.content)
            found.append(Question(row=line.number, prompt=prompt_of(pair), pair=pair))
        except BadRow as bad:
            raise refused(path, line.number, bad) from bad
    if not found:
        raise RefusedInput(f"{path} has no rows")
    return found


def _pair(row: dict[str, Any]) -> dict[str, Any]:
    kind = kind_of(row)
    if {"rejected", "rejected_response"} & row.keys():
        raise BadRow("schema", "the row already has a rejected side")
    if kind == "chat":
        return _pair_of_chat(row)
    if kind != "preference":
        raise BadRow("schema", "needs a chat that ends with a response, or a prompt with 'chosen'")
    pair = {key.removesuffix("_response"): value for key, value in row.items()}
    if isinstance(pair["chosen"], dict):
        pair["chosen"] = [pair["chosen"]]
    parse_row({**pair, "rejected": pair["chosen"]}, "preference")
    return pair


def _pair_of_chat(row: dict[str, Any]) -> dict[str, Any]:
    parsed: Any = parse_row(row, "chat")
    if row.get("type") == "TEXT_TO_VALUE":
        raise BadRow("schema", "type TEXT_TO_VALUE trains labels, not responses")
    if parsed.turns[-1].speaker != ASSISTANT or len(parsed.turns) < 2:
        raise BadRow("role-order", "the chat does not end with a response of the assistant")
    key = "conversations" if "conversations" in row else "messages"
    messages = [{k: v for k, v in message.items() if k != "label"} for message in row[key]]
    pair = {k: v for k, v in row.items() if k not in (key, "mask", "type")}
    return {**pair, "prompt": messages[:-1], "chosen": messages[-1:]}


# --- responses ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answers:
    """Responses by row, in a file to which whole lines are appended."""

    found: dict[int, tuple[str, str]]
    """Text and finish reason."""
    _file: BinaryIO = field(repr=False)

    def add(self, row: int, text: str, finish: str) -> None:
        self.found[row] = text, finish
        self._file.write(json.dumps({"row": row, "text": text, "finish": finish}).encode() + b"\n")
        self._file.flush()


@contextmanager
def open_partial(out: Path, key: list[Any]) -> Iterator[Answers]:
    """Opens the responses of earlier calls with the same ``key`` (data, source, settings), to append more.

    Raises:
        RefusedInput: they are from another call, or a call is running.
        EnvironmentFault: the file cannot be written.
    """
    partial = out.with_name(f"{out.name}.partial")
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    try:
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o640)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {partial}: {error.strerror}") from error
    with os.fdopen(descriptor, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RefusedInput(f"{partial}: another process is writing to it") from error
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]  # a killed process may leave a partial last line
        rows = [parse_object(line) for line in whole.splitlines()]
        if rows and (rows[0] is None or rows[0].get("key") != digest):
            what = "responses for other data, from another model or with other settings"
            raise RefusedInput(f"{partial} contains {what}: delete it, or choose another OUT")
        file.seek(len(whole))
        file.truncate()
        if not rows:
            file.write(json.dumps({"key": digest}).encode() + b"\n")
        found = {row["row"]: (row["text"], row["finish"]) for row in rows[1:] if row is not None}
        yield Answers(found, file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Counts of the rows."""

    pairs: int
    same: int
    """Dropped: the response was empty, or equal to the chosen one."""
    cut: int
    """Pairs whose rejected side ended at max_tokens."""

    def text(self, out: Path, max_tokens: int) -> str:
        """The counts as lines."""
        lines = [f"{out}: {self.pairs:,} pairs"]
        if self.same:
            lines.append(f"left out: {self.same:,} rows whose answer is empty or the chosen one")
        if self.cut:
            lines.append(f"{self.cut:,} rejected answers end at --max-tokens {max_tokens:,}")
        return "\n".join(lines)


def write_pairs(out: Path, questions: Iterable[Question], answers: Answers, tokens: ChatTokens) -> Written:
    """Writes the pairs in the data's order, atomically; then deletes the partial file.

    Raises:
        EnvironmentFault: the file cannot be written.
    """
    lines, same, cut = [], 0, 0
    for question in questions:
        text, finish = answers.found[question.row]
        pair = question.with_rejected(text, finish, tokens)
        if pair is None:
            same += 1
            continue
        cut += finish == "length"
        lines.append(json.dumps(pair) + "\n")
    try:
        write_whole(out, "".join(lines).encode())
    except OSError as error:
        raise EnvironmentFault(f"cannot write {out}: {error.strerror}") from error
    out.with_name(f"{out.name}.partial").unlink()
    return Written(pairs=len(lines), same=same, cut=cut)


def digest(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Answerer(Protocol):
    """Who generates the rejected side."""

    tokens: ChatTokens
    identity: str
    """Differs where the responses would."""

    def answers(
        self, questions: list[Question], settings: dict[str, Any], batch_size: int
    ) -> Iterator[tuple[int, str, str]]:
        """Row, text and finish reason of each response, in any order."""
        ...


def answer_pairs(
    out: Path,
    data: Path,
    questions: list[Question],
    answerer: Answerer,
    settings: dict[str, Any],
    batch_size: int,
    progress: Callable[[str], None],
) -> Written:
    """Generates the responses that earlier calls did not, and writes the pairs.

    Raises:
        RefusedInput, EnvironmentFault: as ``open_partial`` and ``write_pairs``.
    """
    with open_partial(out, [digest(data), answerer.identity, settings]) as answers:
        if missing := [q for q in questions if q.row not in answers.found]:
            for row, text, finish in answerer.answers(missing, settings, batch_size):
                answers.add(row, text, finish)
                progress(f"{len(answers.found):,} of {len(questions):,} answered")
            progress("")
        return write_pairs(out, questions, answers, answerer.tokens)


class EndpointAnswerer:
    """Generates responses with an endpoint, several prompts at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
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
