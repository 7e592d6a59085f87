"""Prompts in the format that a model was trained on, and the end of its responses, for generation. No torch.

A prompt is a text, which is tokenised as is, or a conversation, which the chat template renders up to the header of the
response.
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
    """The prompts of a JSONL file: ``{"prompt": …}``, or a row of any alignment file without its response.

    Args:
        as_chat: treat a text prompt as a user message.

    Raises:
        RefusedInput: the file cannot be read, has no rows, or a row is not a prompt; the message names the first one.
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
        raise RefusedInput(f"{path} has no rows")
    return found


def refused(path: Path, row: int, bad: BadRow) -> RefusedInput:
    """The error message for one row of a prompts file."""
    return RefusedInput([Fault(path="", value=None, rule=f"row {row}: {bad.reason}", where=str(path))])


def prompt_of(row: dict[str, Any]) -> Prompt:
    """The prompt of a row, without the assistant's last turn.

    Raises:
        BadRow: it has no prompt.
    """
    kind = kind_of(row)
    if kind is None or (kind == "preference" and not {"rejected", "rejected_response"} & row.keys()):
        # No response, or only one side: the other one will be generated.
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
        raise BadRow("role-order", "the row has only turns of the assistant")
    return Conversation(parsed.system, turns, parsed.masked)


def user_says(text: str, before: Conversation | None = None) -> Conversation:
    """A conversation whose last turn is the user's."""
    turns = () if before is None else before.turns
    system = "" if before is None else before.system
    return Conversation(system, (*turns, Turn("User", text)), frozenset())


def assistant_says(text: str, before: Conversation) -> Conversation:
    """The conversation with a response appended."""
    return Conversation(before.system, (*before.turns, Turn(ASSISTANT, text)), before.masked)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """The prompt and response format of a checkpoint."""

    tokenizer: Path
    eod: str
    template: ChatTokens | HfTemplate | None
    """None = it was not trained on chats."""
    seq_length: int
    response_blank: bool
    """Whether a space separates prompt and response, as in prompt/response rows."""
    eos: tuple[int, ...]
    """End-of-text token ids."""


@dataclass(slots=True)
class PromptCodec:
    """Encodes prompts and decodes responses.

    Raises:
        RefusedInput: the tokenizer cannot be read.
        EnvironmentFault: the ``tokenizers`` library is missing.
    """

    chat_format: ChatFormat
    eos: frozenset[int] = field(init=False)
    """Ids that end a response."""
    _encoder: Encoder = field(init=False)
    _stop: str | None = field(init=False)

    def __post_init__(self) -> None:
        d = self.chat_format
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
        return self.chat_format.template is not None

    def _template_end(self) -> list[int]:
        """The special token that ends a response in a Hugging Face template."""
        if not isinstance(self.chat_format.template, HfTemplate):
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

    def rendered(self, conversation: Conversation) -> str:
        """A conversation up to the header of the response.

        Raises:
            BadRow: it contains a control string, or the checkpoint has no chat template.
        """
        if self.chat_format.template is None:
            raise BadRow("schema", "the checkpoint was not trained on chats")
        return self._encoder.checked_prompt(Pair(conversation, "", "")).text

    def ids(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt.

        Raises:
            BadRow: it is empty, too long, contains a control string, or the checkpoint has no chat template.
        """
        if not isinstance(prompt, str) and self.chat_format.template is None:
            raise BadRow("schema", "the checkpoint was not trained on chats: give prompts as texts, without --chat")
        (found,) = self._encoder.tokens([self._encoder.checked_prompt(Pair(prompt, "", ""))])
        if isinstance(found, BadRow):
            raise found
        if not len(found.ids):
            raise BadRow("empty", "the prompt is empty")
        if len(found.ids) >= self.chat_format.seq_length:
            limit = f"the model supports {self.chat_format.seq_length:,} tokens for prompt and response together"
            raise BadRow("too-long", f"the prompt has {len(found.ids):,} tokens; {limit}")
        return [int(i) for i in found.ids]

    def has_ended(self, ids: Sequence[int]) -> bool:
        """Whether a response is complete: an end token, or the start of the next turn."""
        if ids[-1] in self.eos:
            return True
        if self._stop is None:
            return False
        # A token has at least one byte, so the string spans at most as many tokens as it has bytes.
        return self._stop in self._decoded(ids[-len(self._stop.encode()) :])

    def answer(self, ids: Sequence[int], after: int) -> str:
        """The text of a response, without its end marker.

        Args:
            after: the prompt's last token: some decoders drop a space at the start of a text.
        """
        ended = bool(ids) and ids[-1] in self.eos
        text = self._decoded([after, *(ids[:-1] if ended else ids)])[len(self._decoded([after])) :]
        if self._stop is not None:
            text, stop, _ = text.partition(self._stop)
            if isinstance(self.chat_format.template, ChatTokens) and (stop or ended):
                text = text.removesuffix(self.chat_format.template.end_of_turn)
        return text.removeprefix(" ") if self.chat_format.response_blank else text

    def settled(self, text: str) -> str:
        """The final part of a streamed response: no partial character, no start of a possible end marker."""
        text = text.rstrip("\ufffd")
        template = self.chat_format.template
        if isinstance(template, ChatTokens):
            end = template.end_of_turn + template.turn_start
            for size in range(min(len(end), len(text)), 0, -1):
                if text.endswith(end[:size]):
                    return text[:-size]
        return text

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self._encoder.library.decode(list(ids), skip_special_tokens=False))
