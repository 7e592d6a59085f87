"""Chat templates of Hugging Face tokenizers: Jinja in a sandbox, with ``{% generation %}`` around the trained text.

A template is an untrusted program. It runs in Jinja's immutable sandbox without files and imports, with limits on the
length of its output and on its time.
https://huggingface.co/docs/transformers/chat_templating_writing
"""

from __future__ import annotations

import json
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from colosseum.data.align.jsonl import BadRow
from colosseum.data.align.render import Rendered, Span
from colosseum.data.align.rows import Conversation, Pair, PromptResponse, Row, Turn
from colosseum.errors import RefusedInput
from colosseum.terminal import one_line

MAX_TEMPLATE_BYTES = 1 << 20
MAX_TEXT = 1 << 26
"""Maximum characters of one rendered row."""
MAX_TIME_S = 10.0
_Messages = list[dict[str, str]]
_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HfTemplate:
    """A template and the special tokens that it may write."""

    source: str
    tokens: tuple[tuple[str, str], ...]
    """``bos_token`` and the like, sorted by name."""

    @property
    def marks_generation(self) -> bool:
        return "generation" in self.source and "endgeneration" in self.source


def read_hf_template(tokenizer: Path) -> HfTemplate:
    """The chat template beside a tokenizer.json: ``chat_template.jinja``, else that of ``tokenizer_config.json``.

    Raises:
        RefusedInput: it does not exist, or cannot be read or parsed.
    """
    folder = tokenizer.parent
    config = _config(folder / "tokenizer_config.json")
    own = folder / "chat_template.jinja"
    source = _small_text(own) if own.is_file() else config.get("chat_template")
    if isinstance(source, list):  # named templates
        named = {t.get("name"): t.get("template") for t in source if isinstance(t, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        raise RefusedInput(
            f"no chat template beside {tokenizer}: no chat_template.jinja, and none in tokenizer_config.json"
        )
    tokens = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    template = HfTemplate(source=source, tokens=tuple(sorted(tokens.items())))
    _compiled(source)
    return template


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(_small_text(path))
    except (ValueError, RecursionError) as error:
        raise RefusedInput(f"{path} is not JSON: {one_line(str(error), 200)}") from error
    if not isinstance(config, dict):
        raise RefusedInput(f"{path} does not contain a JSON object")
    return config


def _small_text(path: Path) -> str:
    try:
        if path.stat().st_size > 16 * MAX_TEMPLATE_BYTES:
            raise RefusedInput(f"{path} has more than {16 * MAX_TEMPLATE_BYTES >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedInput(f"cannot read {path}: {error}") from error


def render_hf(row: Row, template: HfTemplate) -> tuple[Rendered, ...]:
    """As render.render, with the tokenizer's template.

    Raises:
        BadRow: the template refuses the row or fails on it, or the row has a field that such templates do not support.
        RefusedInput: for an SFT row, the template has no ``{% generation %}`` marks.
    """
    if isinstance(row, PromptResponse):
        raise BadRow("schema", "a chat template cannot be used for a prompt/response row")
    if isinstance(row, Pair):
        return _pair(row, template)
    if not template.marks_generation:
        raise RefusedInput(
            "the chat template does not mark responses with {% generation %} … {% endgeneration %}, which say what to"
            " train on: add the marks to chat_template.jinja, or use task.chat_tokens (task.template=chat_tokens)"
        )
    if row.order is not None:
        raise BadRow(
            "schema", f"type {row.order} needs task.chat_tokens: a Hugging Face template does not support labels"
        )
    messages = _messages(row.system, row.turns)
    text, spans = _run(template, messages, add_generation_prompt=False)
    return (_rendered(text, spans, messages),)


def render_hf_prompt(pair: Pair, template: HfTemplate) -> Rendered:
    """What both sides of a pair begin with."""
    if isinstance(pair.prompt, str):
        return Rendered(pair.prompt, (), ((0, len(pair.prompt)),))
    messages = _messages(pair.prompt.system, pair.prompt.turns)
    text, _ = _run(template, messages, add_generation_prompt=True)
    return _rendered(text, [], messages)


def _pair(row: Pair, template: HfTemplate) -> tuple[Rendered, ...]:
    prompt = render_hf_prompt(row, template)
    sides = []
    for side in (row.chosen, row.rejected):
        if isinstance(side, str):
            text, values = prompt.text + side, (*prompt.values, side)
        else:
            assert isinstance(row.prompt, Conversation)
            messages = _messages(row.prompt.system, (*row.prompt.turns, *side))
            text, _ = _run(template, messages, add_generation_prompt=False)
            values = tuple(m["content"] for m in messages)
            if not text.startswith(prompt.text):
                raise BadRow("prompt-prefix", "the rendered prompt is not a prefix of the rendered pair")
        trained = ((len(prompt.text), len(text)),) if len(text) > len(prompt.text) else ()
        sides.append(Rendered(text, trained, ((0, len(text)),), values))
    return tuple(sides)


def _messages(system: str, turns: tuple[Turn, ...]) -> _Messages:
    messages = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        name = turn.speaker.lower()
        messages.append({"role": _ROLES.get(name, name), "content": turn.value})
    return messages


def _rendered(text: str, spans: list[Span], messages: _Messages) -> Rendered:
    return Rendered(text, tuple(spans), ((0, len(text)),), tuple(m["content"] for m in messages))


def _run(template: HfTemplate, messages: _Messages, *, add_generation_prompt: bool) -> tuple[str, list[Span]]:
    """The text and the spans between the marks."""
    compiled, mark = _compiled(template.source)
    if any(c in m["content"] for m in messages for c in mark):
        raise BadRow(
            "control-token", "a value contains a private-use Unicode character that is reserved for marks here"
        )
    pieces, length = [], 0
    try:
        with _time_limit():
            for piece in compiled.generate(
                messages=messages, add_generation_prompt=add_generation_prompt, tools=None, **dict(template.tokens)
            ):
                pieces.append(piece)
                length += len(piece)
                if length > MAX_TEXT:
                    raise BadRow("template", f"the chat template renders this row to more than {MAX_TEXT:,} characters")
    except BadRow:
        raise
    except TimeoutError as error:
        raise BadRow("template", f"the chat template needs more than {MAX_TIME_S:g} s for this row") from error
    except (TemplateError, RecursionError, MemoryError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise BadRow("template", f"the chat template refuses this row: {one_line(str(error), 200)}") from error
    except AttributeError as error:
        raise BadRow("template", f"the chat template fails on this row: {one_line(str(error), 200)}") from error
    return _unmark("".join(pieces), mark)


def _unmark(text: str, mark: tuple[str, str]) -> tuple[str, list[Span]]:
    opening, closing = mark
    parts: list[str] = []
    spans, length, start = [], 0, 0
    for at, part in enumerate(text.split(opening)):
        inside, closed, after = part.partition(closing)
        if (at > 0) != bool(closed) or closing in after:
            raise BadRow("template", "the chat template has nested or unbalanced {% generation %} marks")
        if not closed:
            parts.append(part)
            length += len(part)
            continue
        start = length
        length += len(inside)
        if inside:
            spans.append((start, length))
        parts += [inside, after]
        length += len(after)
    return "".join(parts), spans


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raises TimeoutError if a template does not end in time; only in the main thread, because it uses a signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, MAX_TIME_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Generation(Extension):
    """``{% generation %} … {% endgeneration %}``: the text inside is written between the two marks."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        opening, closing = self.environment.marks  # type: ignore[attr-defined]
        return f"{opening}{caller()}{closing}"


_WIDENING = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
"""String methods that can create a text of any length."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Refuses what creates a long text in one step: ``"x" * 10**10`` fills the memory before any limit applies."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or not all(isinstance(v, int | float) for v in (left, right)):
            raise TemplateError(f"the operator {operator} is not allowed in a template")
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Any:
        if super().wrap_str_format(value) is not None:
            raise TemplateError("str.format is not allowed in a template")
        return None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return not (isinstance(obj, str) and attr in _WIDENING) and super().is_safe_attribute(obj, attr, value)


@lru_cache(maxsize=4)
def _compiled(source: str) -> tuple[Any, tuple[str, str]]:
    if len(source) > MAX_TEMPLATE_BYTES:
        raise RefusedInput(f"the chat template has more than {MAX_TEMPLATE_BYTES >> 20} MiB")
    # Two private-use characters, random in every process, so that no template or row can contain them on purpose.
    pick = secrets.SystemRandom().sample(range(0xF0000, 0xFFFFD), 2)
    mark = (chr(pick[0]), chr(pick[1]))
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.marks = mark  # type: ignore[attr-defined]
    for name in ("center", "format", "indent"):
        del environment.filters[name]
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source), mark
    except (TemplateError, RecursionError, MemoryError, SyntaxError, ValueError) as error:
        raise RefusedInput(f"the chat template is not a valid Jinja template: {one_line(str(error), 200)}") from error


def _raise(message: object) -> None:
    raise TemplateError(str(message))


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """As in transformers: without HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
