"""Parses a JSON object of an alignment file into a typed row; otherwise raises a BadRow that names the wrong key.

Three kinds of file (``Kind``):

chat             ``{"system", "conversations": [{"from", "value", "label"?}], "mask"?, "type"?}`` (NeMo's), or
                 ``{"messages": [{"role", "content"}]}`` (OpenAI's)
prompt_response  ``{"prompt", "response"}`` or ``{"input", "output"}``
preference       ``{"prompt": text or messages of either spelling, "chosen", "rejected"}``, each side a text or a
                 message, also in a list; also ``chosen_response`` and ``rejected_response``
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from colosseum.data.align.jsonl import BadRow
from colosseum.terminal import is_text

Kind = Literal["chat", "prompt_response", "preference"]
LabelOrder = Literal["VALUE_TO_TEXT", "TEXT_TO_VALUE"]
ASSISTANT = "Assistant"
ROLES = ("system", "user", "assistant", "tool")
"""Roles of ``{"role", "content"}`` messages. In the chat text they are System, User, Assistant and Tool."""
KNOWN_KEYS: dict[Kind, frozenset[str]] = {
    "chat": frozenset({"system", "conversations", "mask", "type", "messages"}),
    "prompt_response": frozenset({"prompt", "response", "input", "output"}),
    "preference": frozenset(
        {"prompt", "system", "chosen", "rejected", "chosen_response", "rejected_response"}
        | {"chosen_reward", "rejected_reward"}
    ),
}


@dataclass(frozen=True, slots=True)
class Turn:
    speaker: str
    value: str
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    system: str
    turns: tuple[Turn, ...]
    masked: frozenset[str]
    """Speakers whose turns are not trained on."""
    order: LabelOrder | None = None


@dataclass(frozen=True, slots=True)
class PromptResponse:
    prompt: str
    response: str


@dataclass(frozen=True, slots=True)
class Pair:
    prompt: str | Conversation
    """The prompt is a text that already contains the chat template."""
    chosen: str | tuple[Turn, ...]
    rejected: str | tuple[Turn, ...]


Row = Conversation | PromptResponse | Pair


def kind_of(row: dict[str, Any]) -> Kind | None:
    """The row format that the keys belong to; None if they match no format."""
    if any(key in row for key in ("chosen", "chosen_response", "rejected", "rejected_response")):
        return "preference"
    if "conversations" in row or "messages" in row:
        return "chat"
    if "response" in row or "output" in row:
        return "prompt_response"
    return None


def parse_row(row: dict[str, Any], kind: Kind) -> Row:
    """Parses a typed row.

    Raises:
        BadRow: a key is missing, given under two names, or of the wrong type.
    """
    if kind == "preference":
        return _pair(row)
    if kind == "prompt_response":
        return PromptResponse(_text_of(row, "prompt", "input"), _text_of(row, "response", "output"))
    return _conversation(row)


def _conversation(row: dict[str, Any]) -> Conversation:
    key = _one_key(row, "conversations", "messages")
    if key == "messages":
        return _messages(row[key], key)
    system = "" if row.get("system") is None else _text(row["system"], "system")
    order = row.get("type")
    if order not in (None, "VALUE_TO_TEXT", "TEXT_TO_VALUE"):
        raise BadRow("schema", "type must be VALUE_TO_TEXT, TEXT_TO_VALUE or null")
    mask = "User" if row.get("mask") is None else _text(row["mask"], "mask")
    masked = frozenset(name for part in mask.split(",") if (name := part.strip()))
    return Conversation(system, _turns(row[key], key), masked, order)


def _turns(given: Any, key: str) -> tuple[Turn, ...]:
    """A turn with ``from`` and ``value``."""
    turns = []
    for at, message in enumerate(_list_of_objects(given, key)):
        where = f"{key}[{at}]"
        speaker, value = (_text(message.get(k), f"{where}.{k}") for k in ("from", "value"))
        label = message.get("label")
        turns.append(Turn(_speaker(speaker, where), value, None if label is None else _text(label, f"{where}.label")))
    return tuple(turns)


def _messages(given: Any, key: str) -> Conversation:
    """A turn with ``role`` and ``content``; every role except the assistant is masked."""
    system, turns = "", []
    for at, message in enumerate(_list_of_objects(given, key)):
        where = f"{key}[{at}]"
        role, content = (_text(message.get(k), f"{where}.{k}") for k in ("role", "content"))
        if role not in ROLES:
            raise BadRow("role", f"{where}.role must be one of {', '.join(ROLES)}")
        if role == "system":
            if at:
                raise BadRow("role-order", f"{where}: a system message must come first")
            system = content
        else:
            turns.append(Turn(role.capitalize(), content))
    if not turns:
        raise BadRow("schema", f"{key} has no turns")
    return Conversation(system, tuple(turns), frozenset({"User", "Tool"}))


def _pair(row: dict[str, Any]) -> Pair:
    if "prompt" not in row:
        raise BadRow("schema", "no key 'prompt'")
    prompt = row["prompt"]
    sides = [_side(row, name) for name in ("chosen", "rejected")]
    if isinstance(prompt, str):
        if row.get("system") is not None:
            raise BadRow("schema", "a text prompt must contain its system text: the key 'system' is not allowed")
        if not all(isinstance(side, str) for side in sides):
            raise BadRow("mixed-pair", "a text prompt needs chosen and rejected as texts")
        return Pair(_text(prompt, "prompt"), *sides)
    context = _any_messages(prompt, "prompt")
    if row.get("system") is not None:
        if context.system:
            raise BadRow("schema", "two system texts: the key 'system' and a message")
        context = Conversation(_text(row["system"], "system"), context.turns, context.masked)
    if context.turns[-1].speaker == ASSISTANT:
        raise BadRow("role-order", "a prompt must end before the assistant's turn")
    return Pair(context, *sides)


def _side(row: dict[str, Any], name: str) -> str | tuple[Turn, ...]:
    key = _one_key(row, name, f"{name}_response")
    given = row[key]
    if isinstance(given, str):
        return _text(given, key)
    turns = _any_messages([given] if isinstance(given, dict) else given, key).turns
    if len(turns) != 1 or turns[0].speaker != ASSISTANT:
        raise BadRow("role-order", f"{key} must be one message of the assistant")
    return turns


def _any_messages(given: Any, key: str) -> Conversation:
    first = _list_of_objects(given, key)[0]
    if "role" in first:
        return _messages(given, key)
    return Conversation("", _turns(given, key), frozenset())


def _list_of_objects(given: Any, key: str) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given or not all(isinstance(m, dict) for m in given):
        raise BadRow("wrong-type", f"{key} must be a non-empty list of objects")
    return given


def _one_key(row: dict[str, Any], *names: str) -> str:
    found = [name for name in names if name in row]
    if len(found) != 1:
        raise BadRow("schema", f"both {' and '.join(found)}" if found else f"no key {' or '.join(map(repr, names))}")
    return found[0]


def _text_of(row: dict[str, Any], *names: str) -> str:
    key = _one_key(row, *names)
    return _text(row[key], key)


def _text(value: Any, where: str) -> str:
    if value is None:
        raise BadRow("null", f"{where} is null or missing")
    if not isinstance(value, str):
        raise BadRow("wrong-type", f"{where} must be a string, not {type(value).__name__}")
    if not is_text(value):
        raise BadRow("surrogate", f"{where} contains half a surrogate pair, which is not valid Unicode")
    return value


def _speaker(name: str, where: str) -> str:
    if not name.strip() or any(ord(c) < 32 for c in name):
        raise BadRow("role", f"{where}.from must be a name on one line")
    return name
