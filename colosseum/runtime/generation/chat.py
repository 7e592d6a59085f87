"""A chat with a checkpoint in a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from colosseum.console import note
from colosseum.data.align.jsonl import BadRow
from colosseum.data.align.prompts import PromptCodec, assistant_says, user_says
from colosseum.runtime.generation.answering import answer_in_parts
from colosseum.terminal import clean

if TYPE_CHECKING:
    from colosseum.runtime.generation.engine import Engine


def chat_in_terminal(engine: Engine, codec: PromptCodec, settings: dict[str, Any]) -> None:
    """Reads user lines and prints responses until end of input. Without chat training it continues the texts."""
    note("an empty line starts a new chat, Ctrl-D ends" if codec.can_chat else "Ctrl-D ends")
    before = None
    while (line := _line()) is not None:
        if not line:
            before = None
            continue
        try:
            if not codec.can_chat:
                _answer(engine, codec, codec.ids(line), settings)
                continue
            said = user_says(line, before)
            before = assistant_says(_answer(engine, codec, codec.ids(said), settings), said)
        except BadRow as bad:
            note(bad.reason)


def _line() -> str | None:
    try:
        return input("> ").strip()
    except EOFError:
        return None


def _answer(engine: Engine, codec: PromptCodec, ids: list[int], settings: dict[str, Any]) -> str:
    """Generates a response and prints it as it grows."""

    def show(text: str) -> None:
        sys.stdout.write(clean(text))
        sys.stdout.flush()

    text = answer_in_parts(engine, codec, ids, settings, show)
    sys.stdout.write("\n")
    return text
