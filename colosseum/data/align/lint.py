"""Checks an alignment file in one pass: rows by finding, and statistics of the training data.

Without a tokenizer only the texts are checked; with one also lengths, masks and prefixes, as the runtime computes them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from colosseum.data.align.distance import nearly_same
from colosseum.data.align.encode import Encoder, Spec, Tokens, control_pattern, refuse_forged
from colosseum.data.align.fit import Counts, fit
from colosseum.data.align.jsonl import BadRow, read_lines
from colosseum.data.align.packing import pack
from colosseum.data.align.render import Rendered, control_strings, render
from colosseum.data.align.rows import KNOWN_KEYS, Conversation, Kind, Pair, Row, kind_of, parse_row
from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.tasks import ChatTokens

SCHEMA = "colosseum.lint/1"
EXAMPLES = 5
BATCH_CHARACTERS = 1 << 20
NEAR_IDENTICAL = 0.05

LIMITS: Mapping[str, float | None] = {
    # Rows that training refuses.
    "not-json": 0.0,
    "not-utf8": 0.0,
    "wrong-type": 0.0,
    "schema": 0.0,
    "null": 0.0,
    "surrogate": 0.0,
    "role": 0.0,
    "role-order": 0.0,
    "mixed-pair": 0.0,
    "mixed-schema": 0.0,
    "control-token": 0.0,
    "template": 0.0,
    # Rows that train badly or not at all.
    "nul-character": 0.0,
    "prompt-prefix": 0.0,
    "same-answers": 0.0,
    "near-identical": 0.05,
    "duplicate": 0.01,
    "turn-order": 0.05,
    "empty": 0.01,
    "emptied": 0.01,
    "cut": 0.05,
    "too-long": 0.05,
    # Worth knowing.
    "unknown-key": None,
    "null-value": None,
    "empty-label": None,
    "unclosed": None,
}
"""Maximum share of rows with each finding; above it the lint fails. None: a note, never a failure."""

MEANING = {
    "not-json": "not a JSON object",
    "not-utf8": "not UTF-8",
    "wrong-type": "a value of the wrong type",
    "schema": "keys that do not match any row format",
    "null": "a text that is null or missing",
    "surrogate": "half a surrogate pair",
    "role": "an unknown or invalid speaker",
    "role-order": "a turn in the wrong place",
    "mixed-pair": "a text prompt with message responses",
    "mixed-schema": "rows of a different kind from the first",
    "control-token": "a control string inside a text: a forged turn",
    "template": "the chat template refuses it",
    "nul-character": "a NUL character in a text",
    "prompt-prefix": "the prompt's tokens are not a prefix of both sides: a token spans prompt and response",
    "same-answers": "chosen and rejected are identical",
    "near-identical": "chosen and rejected are nearly identical",
    "duplicate": "a duplicate of an earlier row",
    "turn-order": "the same speaker twice in a row",
    "empty": "nothing to train on; dropped",
    "emptied": "nothing to train on after truncation; dropped",
    "cut": "longer than seq_length + 1 tokens; truncated on the right",
    "too-long": "a side longer than seq_length + 1 tokens; the pair is dropped",
    "unknown-key": "unused keys",
    "null-value": "an optional key that is null",
    "empty-label": 'label "", which writes an empty label block (null writes none)',
    "unclosed": "a response that does not end with end_of_turn and turn_start: the model does not learn to stop",
}


@dataclass(slots=True)
class Finding:
    """Rows with one finding."""

    rows: int = 0
    examples: list[tuple[int, str]] = field(default_factory=list)
    """Line of the file, and the message; the first few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Statistics of the packed rows of a file."""

    rows: int
    efficiency: float
    """Share of their tokens that are not padding."""


@dataclass(slots=True, kw_only=True)
class Report:
    file: Path
    kind: Kind | None = None
    rows: int = 0
    findings: dict[str, Finding] = field(default_factory=lambda: defaultdict(Finding))
    counts: Counts | None = None
    """Counts of the training data; None without a tokenizer."""
    inputs: list[tuple[int, ...]] = field(default_factory=list)
    """Input tokens of each kept row's sequences."""
    longest: int = 0
    """Tokens of the longest sequence, before truncation."""
    longer_chosen: int = 0
    pairs: int = 0
    chosen_size: int = 0
    rejected_size: int = 0
    """Trained tokens (characters without a tokenizer) of all chosen and all rejected answers."""
    silent_roles: tuple[str, ...] = ()
    """Names in ``mask`` without any turn."""

    def add(self, code: str, line: int, reason: str = "") -> None:
        found = self.findings[code]
        found.rows += 1
        if len(found.examples) < EXAMPLES:
            found.examples.append((line, reason))

    def over(self, limits: Mapping[str, float | None] = LIMITS) -> list[str]:
        """Codes with more rows than their limit allows."""
        return [
            code
            for code, found in self.findings.items()
            if (limit := limits[code]) is not None and found.rows > limit * self.rows
        ]

    def figures(self, gbs: int | None) -> list[str]:
        """Counts, lengths and, with ``gbs``, the steps of an epoch: one sentence each."""
        lines = [f"{self.file}: {self.rows:,} rows of kind {self.kind or 'unknown'}"]
        if (counts := self.counts) is not None:
            share = counts.trained_tokens / max(1, counts.tokens)
            lines.append(f"{counts.sentence()}; longest {self.longest:,} tokens")
            lines.append(f"{counts.tokens:,} tokens, {counts.trained_tokens:,} trained ({share:.1%})")
        if (packed := self.packing(gbs)) is not None:
            lines.append(f"task.packing: {packed.rows:,} rows, {packed.efficiency:.0%} of their tokens are not padding")
        if self.pairs:
            unit = "characters" if counts is None else "tokens"
            lines.append(
                f"chosen is longer in {self.longer_chosen / self.pairs:.0%} of pairs; mean"
                f" {self.chosen_size / self.pairs:.1f} against {self.rejected_size / self.pairs:.1f} {unit}"
            )
        if self.silent_roles:
            lines.append(f"named in mask but without any turn: {', '.join(self.silent_roles)}")
        if gbs is not None:
            steps, left = divmod(self.usable, gbs)
            lines.append(f"an epoch at gbs {gbs:,}: {steps:,} steps, {left:,} samples dropped")
        return lines

    def as_json(self, limits: Mapping[str, float | None], gbs: int | None) -> dict[str, Any]:
        findings = {
            code: {"rows": f.rows, "limit": limits[code], "examples": [{"row": n, "reason": r} for n, r in f.examples]}
            for code, f in sorted(self.findings.items())
        }
        usable = self.usable
        document: dict[str, Any] = {"schema": SCHEMA, "file": str(self.file), "kind": self.kind, "rows": self.rows}
        document |= {"findings": findings, "over": self.over(limits), "silent_roles": list(self.silent_roles)}
        document["tokens"] = None
        if self.counts is not None:
            share = self.counts.trained_tokens / max(1, self.counts.tokens)
            document["tokens"] = {**asdict(self.counts), "longest": self.longest, "trained_share": share}
            if (packing := self.packing(gbs)) is not None:
                document["packing"] = {"rows": packing.rows, "efficiency": packing.efficiency}
        if self.pairs:
            document["pairs"] = {
                "chosen_longer_share": self.longer_chosen / self.pairs,
                "chosen_mean": self.chosen_size / self.pairs,
                "rejected_mean": self.rejected_size / self.pairs,
                "unit": "characters" if self.counts is None else "tokens",
            }
        if gbs is not None:
            document["epoch"] = {"samples": usable, "steps": usable // gbs, "left_over": usable % gbs}
        return document

    @property
    def usable(self) -> int:
        """Samples for training, as far as known."""
        return self.rows - len(self.bad_rows) if self.counts is None else self.counts.kept

    def packing(self, gbs: int | None) -> Packed | None:
        """Packed rows of the file with one sample per micro-batch, step by step in file order.

        Args:
            gbs: samples per step; None: all at once.
        """
        if not self.inputs:
            return None
        lengths = np.array(self.inputs, np.int64)
        room = self.seq_length * lengths.shape[1]
        size = gbs or len(lengths)
        steps = [pack(lengths[i : i + size], room) for i in range(0, len(lengths), size)]
        rows = sum(len(step.rows) for step in steps)
        return Packed(rows=rows, efficiency=float(lengths.sum()) / (rows * room))

    seq_length: int = 0
    bad_rows: set[int] = field(default_factory=set)


def lint(
    file: Path,
    *,
    spec: Callable[[Kind], Spec] | None = None,
    near: float = NEAR_IDENTICAL,
    tokens: ChatTokens | None = None,
) -> Report:
    """Reads the whole file.

    Args:
        spec: the spec for the file's kind (the kind of its first valid row); None: no tokenizer.
        near: normalised edit distance (characters, without a common end of turn) of nearly identical responses.
        tokens: control strings of the chat, without a tokenizer.

    Raises:
        RefusedInput: the file or the tokenizer cannot be read, or the file has no row.
    """
    return _Linter(Report(file=file), spec, near, tokens or ChatTokens()).run()


class _Linter:
    def __init__(self, report: Report, spec: Callable[[Kind], Spec] | None, near: float, tokens: ChatTokens) -> None:
        self.report, self._spec, self._near, self._tokens = report, spec, near, tokens
        self._encoder: Encoder | None = None
        self._control = control_pattern(control_strings(tokens))
        self._seen: set[bytes] = set()
        self._masked: Counter[str] = Counter()
        self._spoke: set[str] = set()

    def run(self) -> Report:
        batch: list[tuple[int, Row, tuple[Rendered, ...]]] = []
        size = 0
        for line in read_lines(self.report.file):
            self.report.rows += 1
            try:
                row, texts = self._checked(line.number, line.content)
            except BadRow as bad:
                self._bad(line.number, bad)
                continue
            batch.append((line.number, row, texts))
            size += sum(len(t.text) for t in texts)
            if size >= BATCH_CHARACTERS:
                self._measure(batch)
                batch, size = [], 0
        self._measure(batch)
        if not self.report.rows:
            raise RefusedInput(f"{self.report.file} has no rows")
        self.report.silent_roles = tuple(sorted(set(self._masked) - self._spoke))
        return self.report

    def _bad(self, line: int, bad: BadRow) -> None:
        self.report.add(bad.code, line, bad.reason)
        self.report.bad_rows.add(line)

    def _checked(self, line: int, content: dict[str, Any] | BadRow) -> tuple[Row, tuple[Rendered, ...]]:
        if isinstance(content, BadRow):
            raise content
        kind = kind_of(content)
        if kind is None:
            raise BadRow(
                "schema", f"does not match any row format; its keys are {', '.join(map(repr, list(content)[:5]))}"
            )
        if self.report.kind is None:
            self.report.kind = kind
            if self._spec is not None:
                self._encoder, self.report.counts = Encoder(self._spec(kind)), Counts()
                self.report.seq_length = self._encoder.spec.seq_length
        if kind != self.report.kind:
            raise BadRow("mixed-schema", f"a {kind} row in a file of {self.report.kind} rows")
        row = parse_row(content, kind)
        self._look(line, content, row, kind)
        if self._encoder is not None:
            return row, self._encoder.rendered_row(row)
        texts = render(row, self._tokens, "")
        for text in texts:
            refuse_forged(text, self._control)
        return row, texts

    def _look(self, line: int, content: dict[str, Any], row: Row, kind: Kind) -> None:
        """Findings of a row that can be read."""
        try:
            canonical = json.dumps(content, sort_keys=True).encode()
        except RecursionError as error:
            raise BadRow("not-json", "nested too deeply") from error
        digest = hashlib.blake2b(canonical, digest_size=16).digest()
        if digest in self._seen:
            self.report.add("duplicate", line)
        self._seen.add(digest)
        if unknown := sorted(set(content) - KNOWN_KEYS[kind]):
            self.report.add("unknown-key", line, ", ".join(map(repr, unknown[:5])))
        if nulls := [k for k, v in content.items() if v is None and k != "type"]:
            self.report.add("null-value", line, ", ".join(map(repr, nulls[:5])))
        if b"\\u0000" in canonical:
            self.report.add("nul-character", line)
        conversation = row.prompt if isinstance(row, Pair) else row
        if isinstance(conversation, Conversation):
            self._look_at_turns(line, conversation)
            if "mask" in content:
                self._masked.update(conversation.masked)
        if isinstance(row, Pair):
            self._look_at_sides(line, row)

    def _look_at_turns(self, line: int, row: Conversation) -> None:
        speakers = [turn.speaker for turn in row.turns]
        self._spoke.update(speakers)
        for before, after in pairwise(speakers):
            if before == after != "Tool":
                self.report.add("turn-order", line, f"two turns of {after!r} in a row")
                break
        if any(turn.label == "" for turn in row.turns):
            self.report.add("empty-label", line)

    def _look_at_sides(self, line: int, row: Pair) -> None:
        end = self._tokens.end_of_turn + self._tokens.turn_start
        texts = [side if isinstance(side, str) else side[0].value + end for side in (row.chosen, row.rejected)]
        if not all(text.endswith(end) for text in texts):
            self.report.add("unclosed", line)
        chosen, rejected = (text.removesuffix(end) for text in texts)
        if chosen == rejected:
            self.report.add("same-answers", line)
        elif nearly_same(chosen, rejected, self._near):
            self.report.add("near-identical", line)
        self.report.pairs += 1
        if self._encoder is None:
            self._count_sides(len(chosen), len(rejected))

    def _count_sides(self, chosen: int, rejected: int) -> None:
        self.report.longer_chosen += chosen > rejected
        self.report.chosen_size += chosen
        self.report.rejected_size += rejected

    def _measure(self, batch: list[tuple[int, Row, tuple[Rendered, ...]]]) -> None:
        """Lengths, masks and prefixes, as in training."""
        if self._encoder is None or not batch:
            return
        for line, row, sides in _sides(batch, self._encoder):
            wrong = next((s for s in sides if isinstance(s, BadRow)), None)
            if wrong is not None:
                self._bad(line, wrong)
                continue
            self._fit(line, [s for s in sides if not isinstance(s, BadRow)])
            if isinstance(row, Pair):
                self._check_prefix(line, row, sides)

    def _fit(self, line: int, sides: list[Tokens]) -> None:
        assert self._encoder is not None
        assert self.report.counts is not None
        before, length = self.report.counts, max(len(s.ids) for s in sides)
        self.report.longest = max(self.report.longest, length)
        if len(sides) == 2:
            self._count_sides(*(int(s.mask.sum()) for s in sides))
        kept, after = fit(sides, self._encoder.spec.seq_length, before)
        if kept:
            self.report.inputs.append(tuple(len(s.ids) - 1 for s in kept))
        self.report.counts = after
        for code, name in (("empty", "empty"), ("emptied", "emptied"), ("cut", "cut"), ("too-long", "too_long")):
            if getattr(after, name) > getattr(before, name):
                self.report.add(code, line, f"{length:,} tokens")

    def _check_prefix(self, line: int, row: Pair, sides: list[Tokens | BadRow]) -> None:
        assert self._encoder is not None
        (prompt,) = self._encoder.tokens([self._encoder.prompt(row)])
        if isinstance(prompt, BadRow):
            return
        length = len(prompt.ids)
        if any(not isinstance(s, BadRow) and s.ids[:length].tolist() != prompt.ids.tolist() for s in sides):
            self.report.add("prompt-prefix", line)


def _sides(
    batch: list[tuple[int, Row, tuple[Rendered, ...]]], encoder: Encoder
) -> Iterator[tuple[int, Row, list[Tokens | BadRow]]]:
    tokens = iter(encoder.tokens([text for _, _, texts in batch for text in texts]))
    for line, row, texts in batch:
        yield line, row, [next(tokens) for _ in texts]


def limits_of(words: Sequence[str]) -> dict[str, float | None]:
    """The limits, with those given as ``FINDING=SHARE`` replaced.

    Raises:
        RefusedInput: there is no such finding, or its share is not valid.
    """
    return {**LIMITS, **dict(_limit(word, LIMITS) for word in words)}


def _limit(word: str, known: Mapping[str, float | None]) -> tuple[str, float]:
    code, _, share = word.partition("=")
    try:
        value = float(share)
    except ValueError:
        value = -1.0
    if code not in known:
        near = tuple(get_close_matches(code, known, n=3)) or tuple(known)
        raise RefusedInput([Fault(path="--limit", value=word, rule=f"no such finding: {code!r}", nearest=near)])
    if not 0 <= value <= 1:
        rule = "must be FINDING=SHARE with a share from 0 to 1"
        raise RefusedInput([Fault(path="--limit", value=word, rule=rule, nearest=(f"{code}=0.05",))])
    return code, value
