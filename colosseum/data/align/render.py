"""Renders a row as text, with the spans that are trained and the spans that the template wrote.

The rules are NeMo's (2.2, gpt_sft_chat_dataset.py), with its defects corrected: docs/guides/align.md lists both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from colosseum.data.align.jsonl import BadRow
from colosseum.data.align.rows import ASSISTANT, Conversation, Pair, PromptResponse, Row, Turn
from colosseum.recipe.tasks import ChatTokens

Span = tuple[int, int]
"""Characters [start, end) of a text."""


@dataclass(frozen=True, slots=True)
class Rendered:
    text: str
    trained: tuple[Span, ...]
    """Spans that count in the loss; the rest is context."""
    control: tuple[Span, ...]
    """Spans written by the template, not the row: only they may contain control strings."""
    values: tuple[str, ...] = ()
    """Texts of the row that a Hugging Face template may have put anywhere: they must not contain control strings."""


@dataclass(slots=True)
class _Text:
    """A text built from pieces."""

    parts: list[str] = field(default_factory=list)
    length: int = 0
    trained: list[Span] = field(default_factory=list)
    control: list[Span] = field(default_factory=list)

    def add(self, text: str, *, trained: bool = False, control: bool = False) -> None:
        span = (self.length, self.length + len(text))
        self.parts.append(text)
        self.length = span[1]
        if trained and text:
            self.trained.append(span)
        if control and text:
            self.control.append(span)

    def done(self) -> Rendered:
        return Rendered("".join(self.parts), tuple(self.trained), tuple(self.control))


def render(row: Row, tokens: ChatTokens, eod: str) -> tuple[Rendered, ...]:
    """The text of an SFT row, or the two of a pair: chosen, then rejected.

    Args:
        eod: end-of-document token, which ends a prompt/response row (a chat ends with ``turn_start``).
    """
    if isinstance(row, Conversation):
        return (_conversation(row, tokens),)
    if isinstance(row, PromptResponse):
        return (_prompt_response(row, eod),)
    return tuple(_side(row, side, tokens) for side in (row.chosen, row.rejected))


def render_prompt(pair: Pair, tokens: ChatTokens) -> Rendered:
    """The common prompt of both sides of a pair."""
    text = _Text()
    _add_prompt(text, pair, tokens)
    return text.done()


def _conversation(row: Conversation, tokens: ChatTokens) -> Rendered:
    text = _Text()
    _add_system(text, row.system, tokens)
    for at, turn in enumerate(row.turns):
        _add_turn(text, row, at, turn, tokens)
    if row.turns[-1].speaker not in row.masked:
        text.add(tokens.turn_start, trained=True, control=True)
    return text.done()


def _add_system(text: _Text, system: str, tokens: ChatTokens) -> None:
    text.add(tokens.system_turn_start, control=True)
    text.add("System")
    text.add(tokens.end_of_name, control=True)
    text.add(system)
    text.add(tokens.end_of_turn, control=True)


def _add_turn(text: _Text, row: Conversation, at: int, turn: Turn, tokens: ChatTokens) -> None:
    text_to_value = row.order == "TEXT_TO_VALUE"
    masked = turn.speaker in row.masked or (at == 0 and not text_to_value)
    # After a trained turn the model must learn to stop: at the next turn_start.
    stops = turn.speaker in row.masked and at > 1
    value = not masked and not text_to_value
    text.add(tokens.turn_start, trained=stops, control=True)
    _add_name(text, turn.speaker, tokens)
    if row.order == "VALUE_TO_TEXT":
        _add_label(text, turn.label, tokens, trained=False)
    text.add(turn.value, trained=value)
    text.add(tokens.end_of_turn, trained=value, control=True)
    if text_to_value:
        _add_label(text, turn.label, tokens, trained=not masked)


def _add_name(text: _Text, name: str, tokens: ChatTokens) -> None:
    if tokens.end_of_name in name:
        raise BadRow("control-token", f"the speaker name {name!r} contains end_of_name")
    text.add(name)
    text.add(tokens.end_of_name, control=True)


def _add_label(text: _Text, label: str | None, tokens: ChatTokens, *, trained: bool) -> None:
    if label is None:
        return
    if tokens.end_of_name in label:
        raise BadRow("control-token", "a label contains end_of_name, which ends a label")
    text.add(tokens.label_start, control=True)
    text.add(label, trained=trained)
    text.add(tokens.end_of_name, trained=trained, control=True)


def _prompt_response(row: PromptResponse, eod: str) -> Rendered:
    """NeMo's prompt_template "{input} {output}" with add_eos: the space belongs to the response."""
    text = _Text()
    text.add(row.prompt)
    text.add(f" {row.response}", trained=True)
    text.add(eod, trained=True, control=True)
    return text.done()


def _side(pair: Pair, side: str | tuple[Turn, ...], tokens: ChatTokens) -> Rendered:
    text = _Text()
    _add_prompt(text, pair, tokens)
    if isinstance(side, str):
        _add_response(text, side, tokens)
    else:
        text.add(side[0].value, trained=True)
        text.add(tokens.end_of_turn, trained=True, control=True)
        text.add(tokens.turn_start, trained=True, control=True)
    return text.done()


def _add_prompt(text: _Text, pair: Pair, tokens: ChatTokens) -> None:
    if isinstance(pair.prompt, str):
        text.add(pair.prompt, control=True)  # it contains the template text itself
        return
    _add_system(text, pair.prompt.system, tokens)
    for turn in pair.prompt.turns:
        text.add(tokens.turn_start, control=True)
        _add_name(text, turn.speaker, tokens)
        text.add(turn.value)
        text.add(tokens.end_of_turn, control=True)
    text.add(tokens.turn_start, control=True)
    _add_name(text, ASSISTANT, tokens)


def _add_response(text: _Text, response: str, tokens: ChatTokens) -> None:
    """Nothing is appended: to train the model to stop, a text must end with ``end_of_turn`` and ``turn_start``."""
    end = tokens.end_of_turn + tokens.turn_start
    closed = response.endswith(end)
    text.add(response.removesuffix(end) if closed else response, trained=True)
    if closed:
        text.add(tokens.end_of_turn, trained=True, control=True)
        text.add(tokens.turn_start, trained=True, control=True)


def control_strings(tokens: ChatTokens) -> Sequence[str]:
    """Control strings that normal text cannot contain: not those of white space only."""
    return [t for t in tokens.model_dump().values() if t.strip()]
