"""Prompts answered by a checkpoint: its model, its tokenizer and its template together.

Importing this needs no torch; ``loaded`` does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colosseum.checkpoint.chat_format import chat_format_of
from colosseum.checkpoint.folders import read_metadata
from colosseum.checkpoint.hf.origin import origin_of
from colosseum.data.align.jsonl import BadRow
from colosseum.data.align.prompts import PromptCodec, PromptRow, refused
from colosseum.data.align.rejected import Question, digest
from colosseum.recipe.tasks import ChatTokens
from colosseum.rundir import CHECKPOINT_MARK

if TYPE_CHECKING:
    from colosseum.runtime.generation.engine import Engine


def codec_of(folder: Path) -> PromptCodec:
    """The prompt and response format of a checkpoint."""
    metadata = read_metadata(folder)
    return PromptCodec(chat_format_of(origin_of(folder, metadata), metadata))


@contextmanager
def loaded(folder: Path, codec: PromptCodec, say: Callable[[str], None], *, as_trained: bool) -> Iterator[Engine]:
    """The checkpoint's model, ready to answer.

    Args:
        as_trained: on the checkpoint's TP x PP ranks, else in one process.
    """
    warnings.filterwarnings("ignore")  # of libraries, about themselves, in the middle of a chat
    from colosseum.runtime import device

    device.compile_nothing_on_cpu()
    from colosseum.runtime.generation.engine import started

    layout = read_metadata(folder).layout
    tp, pp = (layout.tp, layout.pp) if as_trained else (1, 1)
    say(f"loading {folder}" + (f" on {tp * pp} ranks" if tp * pp > 1 else ""))
    with started(folder, tp, pp, codec.vocab_size) as engine:
        yield engine


def ids_of(codec: PromptCodec, file: Path, rows: list[PromptRow]) -> dict[int, list[int]]:
    """Token ids of prompts, by their place in the file.

    Raises:
        RefusedInput: a prompt is empty, too long, or holds a control string.
    """
    ids = {}
    for number, row in enumerate(rows):
        try:
            ids[number] = codec.ids(row.prompt)
        except BadRow as bad:
            raise refused(file, row.number, bad) from bad
    return ids


def answers_of(
    engine: Engine, codec: PromptCodec, ids: dict[int, list[int]], settings: dict[str, Any], batch_size: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number of a prompt and its answer, batch by batch: `generated`, `finish` and `tokens`."""
    from colosseum.runtime.generation.sampling import Sampling

    found = engine.answers(ids, Sampling(**settings), codec.has_ended, rows=batch_size)
    for number, tokens in found:
        finish = "stop" if codec.has_ended(tokens) else "length"
        text = codec.answer(tokens, ids[number][-1])
        yield number, {"generated": text, "finish": finish, "tokens": len(tokens)}


def answer_rows(
    engine: Engine,
    codec: PromptCodec,
    rows: list[PromptRow],
    ids: dict[int, list[int]],
    settings: dict[str, Any],
    batch_size: int,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Each prompt's row with its answer, in the order of the prompts."""
    found: list[dict[str, Any]] = [{} for _ in rows]
    for done, (number, answer) in enumerate(answers_of(engine, codec, ids, settings, batch_size), 1):
        found[number] = {**rows[number].content, **answer}
        progress(f"{done:,} of {len(rows):,} answered")
    progress("")
    return found


def answer_in_parts(
    engine: Engine, codec: PromptCodec, ids: list[int], settings: dict[str, Any], show: Callable[[str], None]
) -> str:
    """One answer; ``show`` is given each piece of its text as soon as no later token can change it."""
    from colosseum.runtime.generation.sampling import Sampling

    shown = ""

    def update(text: str) -> None:
        nonlocal shown
        if text.startswith(shown):
            show(text[len(shown) :])
            shown = text

    def ends(tokens: list[int]) -> bool:
        update(codec.settled(codec.answer(tokens, ids[-1])))
        return codec.has_ended(tokens)

    ((_, tokens),) = engine.answers({0: ids}, Sampling(**settings), ends, rows=1)
    text = codec.answer(tokens, ids[-1])
    update(text)
    return text


class CheckpointAnswerer:
    """A checkpoint of ours answers."""

    def __init__(self, folder: Path, say: Callable[[str], None], data: Path, questions: list[Question]) -> None:
        self._folder, self._say = folder, say
        self._codec = codec_of(self._folder)
        template = self._codec.chat_format.template
        self.tokens = template if isinstance(template, ChatTokens) else ChatTokens()
        self.identity = digest(folder / CHECKPOINT_MARK)
        self._ids = {}
        for question in questions:
            try:
                self._ids[question.row] = self._codec.ids(question.prompt)
            except BadRow as bad:
                raise refused(data, question.row, bad) from bad

    def answers(
        self, questions: list[Question], settings: dict[str, Any], batch_size: int
    ) -> Iterator[tuple[int, str, str]]:
        ids = {q.row: self._ids[q.row] for q in questions}
        with loaded(self._folder, self._codec, self._say, as_trained=False) as engine:
            for row, answer in answers_of(engine, self._codec, ids, settings, batch_size):
                yield row, answer["generated"], answer["finish"]
