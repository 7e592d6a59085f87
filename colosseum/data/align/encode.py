"""Rows to token ids and loss masks.

The whole text of a row is tokenised at once, so that merges across the parts of a turn are the same as at inference.
A token is trained if all the characters that it covers are marked as trained.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from colosseum.data.align.hf_template import HfTemplate, read_hf_template, render_hf, render_hf_prompt
from colosseum.data.align.jsonl import BadRow
from colosseum.data.align.render import Rendered, Span, control_strings, render, render_prompt
from colosseum.data.align.rows import Kind, Pair, Row, parse_row
from colosseum.data.eod import read_json
from colosseum.data.tokenizer import load_tokenizer, refusing
from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.schema import Recipe
from colosseum.recipe.tasks import ChatTokens

Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
CACHE_VERSION = 1
"""Version of the meaning of ids and masks; a change rebuilds every cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Everything that determines the ids and masks of a file's rows."""

    kind: Kind
    tokenizer: Path
    """tokenizer.json."""
    eod: str
    template: ChatTokens | HfTemplate
    seq_length: int

    def digest(self) -> str:
        """Hash of the content; of the tokenizer's bytes, not its path."""
        template = self.template
        if isinstance(template, ChatTokens):
            text: Any = template.model_dump()
        else:
            text = [template.source, template.tokens]
        with self.tokenizer.open("rb") as file:
            tokenizer = hashlib.file_digest(file, "sha256").hexdigest()
        parts = [CACHE_VERSION, self.kind, tokenizer, self.eod, text, self.seq_length]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def spec_of(recipe: Recipe) -> Spec:
    """The spec of an SFT or DPO recipe.

    Raises:
        RefusedInput: the recipe's tokenizer is not a tokenizer.json, or lacks a chat template that the task needs.
    """
    task, tokenizer = recipe.alignment, recipe.tokenizer
    assert task is not None
    if tokenizer.kind != "tokenizer_json" or tokenizer.path is None:
        rule = "SFT and DPO data need a tokenizer.json (Hugging Face tokenizers)"
        raise RefusedInput([Fault(path="tokenizer.kind", value=tokenizer.kind, rule=rule, nearest=("tokenizer_json",))])
    path = Path(tokenizer.path)
    return Spec(
        kind=task.rows,
        tokenizer=path,
        eod=tokenizer.eod,
        template=read_hf_template(path) if task.template == "tokenizer" else task.chat_tokens,
        seq_length=recipe.batch.seq_length,
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    """An encoded text. Where ``mask[t]``, token ``t`` is trained as the target of the position before it."""

    ids: Ids
    mask: Mask
    spans: npt.NDArray[np.int64]
    """``[tokens, 2]``: characters [start, end) of the text that each token covers."""


class Encoder:
    """Encodes rows by a spec.

    Raises:
        RefusedInput: the tokenizer cannot be read, or ``eod`` is not one of its special tokens.
        EnvironmentFault: the ``tokenizers`` library is missing.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        loaded = load_tokenizer(spec.tokenizer, spec.eod)
        self.vocab_size = loaded.vocab_size
        self.library = loaded.library
        self.library.encode_special_tokens = False  # only the template may write them; a row with them is refused below
        # ByteLevel's post-processor would trim spaces from the spans; the ids are the same without it.
        from tokenizers import processors

        self.library.post_processor = processors.Sequence([])
        special = read_json(spec.tokenizer).special
        self.special_ids = np.array(sorted(special.values()), np.int32)
        controls = control_strings(spec.template) if isinstance(spec.template, ChatTokens) else ()
        self._control = control_pattern({*special, *controls})

    def rendered(self, content: dict[str, Any] | BadRow) -> tuple[Rendered, ...]:
        """The texts of a row: one, or a pair's chosen and rejected.

        Raises:
            BadRow: the row is not of the spec's kind, or contains a control string.
        """
        if isinstance(content, BadRow):
            raise content
        return self.rendered_row(parse_row(content, self.spec.kind))

    def rendered_row(self, row: Row) -> tuple[Rendered, ...]:
        template = self.spec.template
        hf = isinstance(template, HfTemplate)
        texts = render_hf(row, template) if hf else render(row, template, self.spec.eod)  # type: ignore[arg-type]
        for text in texts:
            refuse_forged(text, self._control)
        return texts

    def prompt(self, row: Pair) -> Rendered:
        """The common prompt of both sides of a pair."""
        template = self.spec.template
        return render_hf_prompt(row, template) if isinstance(template, HfTemplate) else render_prompt(row, template)

    def checked_prompt(self, row: Pair) -> Rendered:
        """As `prompt`, for a row that was not rendered completely.

        Raises:
            BadRow: it contains a control string.
        """
        text = self.prompt(row)
        refuse_forged(text, self._control)
        return text

    def tokens(self, texts: Sequence[Rendered]) -> list[Tokens | BadRow]:
        """Ids, masks and spans of texts from ``rendered``. BadRow: a normaliser turned text into a control token."""
        with refusing("the tokenizer cannot encode this text"):
            encodings = self.library.encode_batch([t.text for t in texts], add_special_tokens=False)
        return [self._marked(t, e) for t, e in zip(texts, encodings, strict=True)]

    def _marked(self, text: Rendered, encoding: Any) -> Tokens | BadRow:
        ids = np.array(encoding.ids, np.int32)
        spans = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        special = np.isin(ids, self.special_ids)
        forged = special & (_marked_characters(spans, text.control, len(text.text)) == 0)
        if forged.any():
            start, end = spans[forged.argmax()]
            return _forged(text.text[start:end])
        return Tokens(ids, _inside(spans, text.trained, len(text.text)), spans)


def control_pattern(words: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of the strings at each position."""
    longest_first = sorted(set(words) - {""}, key=lambda w: (-len(w), w))
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def refuse_forged(text: Rendered, control: re.Pattern[str]) -> None:
    """Checks that no control string comes from a row's own text, not even in part.

    Raises:
        BadRow: a control string was found.
    """
    for value in text.values:
        if found := control.search(value):
            raise _forged(found.group())
    starts = np.array([s for s, _ in text.control], np.int64)
    for found in control.finditer(text.text):
        at = int(np.searchsorted(starts, found.start(), side="right")) - 1
        if at < 0 or found.end() > text.control[at][1]:
            raise _forged(found.group())


def _forged(token: str) -> BadRow:
    return BadRow(
        "control-token", f"a text of the row contains the control string {token!r}, which only the template may write"
    )


def _inside(spans: npt.NDArray[np.int64], marked: Sequence[Span], length: int) -> Mask:
    """Which spans lie completely in the marked characters; an empty span needs both neighbours marked."""
    empty = spans[:, 0] == spans[:, 1]
    widened = spans + np.stack([-1 * empty, 1 * empty], axis=1)
    inside: Mask = _marked_characters(widened, marked, length) == widened[:, 1] - widened[:, 0]
    return inside


def _marked_characters(spans: npt.NDArray[np.int64], marked: Sequence[Span], length: int) -> npt.NDArray[np.int64]:
    """Number of marked characters in each span; positions before and after the text are not marked."""
    is_marked = np.zeros(length + 2, np.int64)
    for start, end in marked:
        is_marked[start + 1 : end + 1] = 1
    upto = np.concatenate([[0], np.cumsum(is_marked)])
    counts: npt.NDArray[np.int64] = upto[spans[:, 1] + 1] - upto[spans[:, 0] + 1]
    return counts
