"""Prompts as a model was trained to read them, and the end of its answers: for generation. No torch.

A prompt is a text, which is tokenised as it stands, or a conversation, which the chat template writes up to the
header of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colosseum.data.align.encode import Encoder, Spec
from colosseum.data.align.hf_template import HfTemplate
from colosseum.data.align.jsonl import BadRow, read_lines
from colosseum.data.align.rows import ASSISTANT, Conversation, Pair, PromptResponse, Turn, kind_of, parse_row
from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.tasks import ChatTokens

Prompt = str | Conversation


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A line of a prompts file."""

    number: int
    """1-based."""
    content: dict[str, Any]
    prompt: Prompt


def read_prompts(path: Path, *, as_chat: bool) -> list[PromptRow]:
    """The prompts of a JSONL file: ``{"prompt": …}``, or a row of any alignment file without its answer.

    Args:
        as_chat: a prompt that is a text is a message of the user.

    Raises:
        RefusedInput: the file cannot be read, holds no row, or a row is no prompt; the first of these is named.
    """
    found = []
    for line in read_lines(path):
        try:
            if isinstance(line.content, BadRow):
                raise line.content
            prompt = prompt_of(line.content)
        except BadRow as bad:
            raise refused(path, line.number, bad) from bad
        if as_chat and isinstance(prompt, str):
            prompt = user_says(prompt)
        found.append(PromptRow(line.number, line.content, prompt))
    if not found:
        raise RefusedInput(f"{path} holds no row")
    return found


def refused(path: Path, row: int, bad: BadRow) -> RefusedInput:
    """The refusal of a prompts file for one row."""
    return RefusedInput([Fault(path="", value=None, rule=f"row {row}: {bad.reason}", where=str(path))])


def prompt_of(row: dict[str, Any]) -> Prompt:
    """What a row asks; the assistant's last turn, where it has one, is left out.

    Raises:
        BadRow: there is no prompt in it.
    """
    kind = kind_of(row)
    if kind is None or (kind == "preference" and not {"rejected", "rejected_response"} & row.keys()):
        # No answer, or one side only: the other one is what will be generated.
        row = {k: v for k, v in row.items() if k not in ("chosen", "chosen_response")}
        blank: Any = "" if isinstance(row.get("prompt"), str) else {"from": ASSISTANT, "value": ""}
        row, kind = {**row, "chosen": blank, "rejected": blank}, "preference"
    parsed = parse_row(row, kind)
    if isinstance(parsed, Pair):
        return parsed.prompt
    if isinstance(parsed, PromptResponse):
        return parsed.prompt
    turns = parsed.turns[:-1] if parsed.turns[-1].speaker == ASSISTANT else parsed.turns
    if not turns:
        raise BadRow("role-order", "the row holds no turn but the assistant's")
    return Conversation(parsed.system, turns, parsed.masked)


def user_says(text: str, before: Conversation | None = None) -> Conversation:
    """A conversation whose last turn is the user's."""
    turns = () if before is None else before.turns
    system = "" if before is None else before.system
    return Conversation(system, (*turns, Turn("User", text)), frozenset())


def assistant_says(text: str, before: Conversation) -> Conversation:
    """A conversation that goes on with an answer."""
    return Conversation(before.system, (*before.turns, Turn(ASSISTANT, text)), before.masked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a checkpoint's prompts and answers are written."""

    tokenizer: Path
    eod: str
    template: ChatTokens | HfTemplate | None
    """None = it was never taught to chat."""
    seq_length: int
    response_blank: bool
    """Whether a blank stands between prompt and answer, as prompt/response rows have it."""
    eos: tuple[int, ...]
    """Ids that end a text."""


@dataclass(slots=True)
class Translator:
    """Prompts to ids, ids to answers.

    Raises:
        RefusedInput: the tokenizer cannot be read.
        EnvironmentFault: the ``tokenizers`` library is missing.
    """

    dialect: Dialect
    eos: frozenset[int] = field(init=False)
    """Ids that end an answer."""
    _encoder: Encoder = field(init=False)
    _stop: str | None = field(init=False)

    def __post_init__(self) -> None:
        d = self.dialect
        spec = Spec(
            kind="preference",
            tokenizer=d.tokenizer,
            eod=d.eod,
            template=d.template or ChatTokens(),
            seq_length=d.seq_length,
        )
        self._encoder = Encoder(spec)
        self._stop = d.template.turn_start if isinstance(d.template, ChatTokens) else None
        self.eos = frozenset({*d.eos, *self._template_end()})

    @property
    def vocab_size(self) -> int:
        return self._encoder.vocab_size

    @property
    def can_chat(self) -> bool:
        return self.dialect.template is not None

    def _template_end(self) -> list[int]:
        """The special token with which a Hugging Face template ends an answer."""
        if not isinstance(self.dialect.template, HfTemplate):
            return []
        side = (Turn(ASSISTANT, "x"),)
        try:
            text = self._encoder.rendered_row(Pair(user_says("x"), side, side))[0]
            (tokens,) = self._encoder.tokens([text])
            if isinstance(tokens, BadRow):
                raise tokens
        except BadRow:
            return []
        ends = [int(i) for i in tokens.ids[tokens.mask] if i in self._encoder.special_ids]
        return ends[:1]

    def ids(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt.

        Raises:
            BadRow: it is empty, too long, holds a control string, or the checkpoint has no chat template.
        """
        if not isinstance(prompt, str) and self.dialect.template is None:
            raise BadRow("schema", "the checkpoint was not taught to chat: give prompts as texts, without --chat")
        (found,) = self._encoder.tokens([self._encoder.checked_prompt(Pair(prompt, "", ""))])
        if isinstance(found, BadRow):
            raise found
        if not len(found.ids):
            raise BadRow("empty", "the prompt is empty")
        if len(found.ids) >= self.dialect.seq_length:
            limit = f"the model reads {self.dialect.seq_length:,} tokens, prompt and answer together"
            raise BadRow("too-long", f"the prompt has {len(found.ids):,} tokens; {limit}")
        return [int(i) for i in found.ids]

    def has_ended(self, ids: Sequence[int]) -> bool:
        """Whether an answer of these ids is at its end: an end token, or the beginning of the next turn."""
        if ids[-1] in self.eos:
            return True
        if self._stop is None:
            return False
        # A token has at least one byte, so the string lies in as many tokens as it has bytes.
        return self._stop in self._decoded(ids[-len(self._stop.encode()) :])

    def answer(self, ids: Sequence[int], after: int) -> str:
        """The answer that ids say, without what ends it.

        Args:
            after: the prompt's last token: at the beginning of a text some decoders drop a blank.
        """
        ended = bool(ids) and ids[-1] in self.eos
        text = self._decoded([after, *(ids[:-1] if ended else ids)])[len(self._decoded([after])) :]
        if self._stop is not None:
            text, stop, _ = text.partition(self._stop)
            if isinstance(self.dialect.template, ChatTokens) and (stop or ended):
                text = text.removesuffix(self.dialect.template.end_of_turn)
        return text.removeprefix(" ") if self.dialect.response_blank else text

    def settled(self, text: str) -> str:
        """The part of a growing answer that stays: no half character, no beginning of what may end the answer."""
        text = text.rstrip("\ufffd")
        template = self.dialect.template
        if isinstance(template, ChatTokens):
            end = template.end_of_turn + template.turn_start
            for size in range(min(len(end), len(text)), 0, -1):
                if text.endswith(end[:size]):
                    return text[:-size]
        return text

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self._encoder.library.decode(list(ids), skip_special_tokens=False))
