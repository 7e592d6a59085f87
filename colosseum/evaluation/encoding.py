"""How an evaluation encodes texts for a checkpoint of ours: the begin-of-text token once, and the chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colosseum.data.align.jsonl import BadRow
from colosseum.data.align.prompts import PromptCodec
from colosseum.data.align.rows import ASSISTANT, Conversation, Turn
from colosseum.errors import RefusedInput
from colosseum.recipe.tasks import ChatTokens

_ROLES = {"user": "User", "assistant": ASSISTANT}


def prepended(library: Any) -> list[int]:
    """Ids that a tokenizer puts before every text: BOS, or none."""
    plain, whole = (list(library.encode("a", add_special_tokens=special).ids) for special in (False, True))
    before = next((n for n in range(len(whole)) if whole[n : n + len(plain)] == plain), 0)
    return [int(i) for i in whole[:before]]


class Encoding:
    """Texts to token ids and back.

    A BOS token is prepended where the tokenizer's own post-processor does it, as for every other user of the folder,
    unless the text begins with it already.
    """

    def __init__(self, codec: PromptCodec) -> None:
        from tokenizers import Tokenizer

        self._codec = codec
        path = codec.chat_format.tokenizer
        self._library = Tokenizer.from_file(str(path))
        self._bos = prepended(self._library)
        self.eod: int = self._library.token_to_id(codec.chat_format.eod) or 0
        self.prefix = self._named_bos(path)
        self.special_ids = frozenset(
            int(i) for i, token in self._library.get_added_tokens_decoder().items() if token.special
        )
        self.seq_length = codec.chat_format.seq_length
        self.name = hashlib.sha256(path.read_bytes()).hexdigest()[:16]

    @property
    def bos(self) -> bool:
        return bool(self._bos)

    @property
    def can_chat(self) -> bool:
        return self._codec.can_chat

    @property
    def template(self) -> str:
        """Text that the chat format is known by."""
        template = self._codec.chat_format.template
        if template is None:
            return ""
        return json.dumps(template.model_dump()) if isinstance(template, ChatTokens) else template.source

    def _named_bos(self, path: Path) -> int:
        """The BOS token of tokenizer_config.json, else the end of a document: what comes before a text in training."""
        try:
            named = json.loads((path.parent / "tokenizer_config.json").read_text(encoding="utf-8"))["bos_token"]
        except (OSError, ValueError, KeyError, TypeError):
            return self._bos[0] if self._bos else self.eod
        found = self._library.token_to_id(named["content"] if isinstance(named, dict) else str(named))
        return self.eod if found is None else int(found)

    def ids(self, text: str, *, bos: bool) -> list[int]:
        found = [int(i) for i in self._library.encode(text, add_special_tokens=False).ids]
        if bos and self._bos and found[: len(self._bos)] != self._bos:
            return [*self._bos, *found]
        return found

    def chat(self, messages: Sequence[dict[str, str]], *, prefilled: bool) -> str:
        """A conversation as the model was trained on it, up to the header of the answer.

        Args:
            prefilled: the last message is the beginning of the answer, which the model continues.

        Raises:
            RefusedInput: a message contains a control string, or there is no chat template.
        """
        start = ""
        if prefilled and messages and messages[-1]["role"] == "assistant":
            start, messages = messages[-1]["content"], messages[:-1]
        system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
        turns = tuple(Turn(_ROLES[m["role"]], m["content"]) for m in messages if m["role"] != "system")
        try:
            return self._codec.rendered(Conversation(system, turns, frozenset())) + start
        except BadRow as bad:
            raise RefusedInput(f"a question cannot be rendered by the chat template: {bad.reason}") from bad

    def has_ended(self, ids: list[int], until: Sequence[str]) -> bool:
        """Whether an answer is at its end: an end token, the next turn, or one of the task's own strings."""
        if self._codec.has_ended(ids):
            return True
        # A token has at least one byte, so a string spans at most as many tokens as it has bytes.
        return any(text in self._decoded(ids[-len(text.encode()) :]) for text in until)

    def text(self, ids: Sequence[int], after: int) -> str:
        """The text of an answer, without its end marker; ``after`` is the prompt's last token."""
        return self._codec.answer(ids, after)

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self._library.decode(list(ids), skip_special_tokens=False))
