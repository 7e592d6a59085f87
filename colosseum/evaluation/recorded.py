"""A model of the harness whose answers are kept: those of an earlier start are not computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lm_eval.api.model import LM

from colosseum.evaluation.answers import Answers, keys_of

CHUNK = 8
"""Batches between two writes."""
Check = Callable[[Any, Sequence[str]], None]
"""Is given the model and the first contexts; raises RefusedInput."""
Say = Callable[[str], None]


class Recorded(LM):  # type: ignore[misc]  # the harness has no types here
    """Passes requests on to ``inner``, the longest first, and writes each answer down."""

    def __init__(self, inner: Any, answers: Answers, check: Check, say: Say, *, batch_size: int) -> None:
        super().__init__()
        self.inner, self._answers, self._check, self._say = inner, answers, check, say
        self._batch_size = batch_size

    @property
    def tokenizer_name(self) -> str:
        return str(self.inner.tokenizer_name)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        found: str | None = self.inner.chat_template(chat_template)
        return found

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return str(self.inner.apply_chat_template(chat_history, add_generation_prompt=add_generation_prompt))

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return [(float(score), bool(greedy)) for score, greedy in self._through("loglikelihood", requests)]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        return [float(score) for score in self._through("loglikelihood_rolling", requests)]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        return [str(text) for text in self._through("generate_until", requests)]

    def _through(self, kind: str, requests: list[Any]) -> list[Any]:
        keys, found = keys_of(kind, [request.args for request in requests]), self._answers.found
        if kind != "loglikelihood_rolling":
            self._check(self.inner, [request.args[0] for request in requests])
        missing = sorted((i for i, key in enumerate(keys) if key not in found), key=lambda i: -_length(requests[i]))
        if len(missing) < len(requests):
            self._say(f"{len(requests) - len(missing):,} of {len(requests):,} answers are there from an earlier start")
        size = self._batch_size * CHUNK
        for at in range(0, len(missing), size):
            part = missing[at : at + size]
            numbered = [replace(requests[i], idx=int(keys[i][:12], 16)) for i in part]
            new = getattr(self.inner, kind)(numbered, disable_tqdm=True)
            self._answers.add({keys[i]: answer for i, answer in zip(part, new, strict=True)})
            self._say(f"{min(at + size, len(missing)):,} of {len(missing):,} answers")
        return [found[key] for key in keys]


def _length(request: Any) -> int:
    return sum(len(text) for text in request.args if isinstance(text, str))
