"""``key=VALUE`` arguments, and references between values: plain data in, plain data out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.scan import REFERENCE, plain_scalar, scan

COMMAND_LINE = "command line"
GROUPS = ("model", "data", "cluster", "hardware", "precision", "optimizer", "tokenizer")
MAX_TEXT = 100_000
MAX_HOPS = 32
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """The overrides on one command line."""

    choices: dict[str, str]
    """group -> name of the chosen file."""
    changes: tuple[tuple[tuple[str, ...], Any], ...]
    """(path, value) in order; ``DEFAULT`` resets the path to its default."""
    typed: dict[str, str]
    """Dotted path -> its value as it was typed, where YAML makes something else of it, such as a number."""


class _Default:
    """The value of ``~key``."""


DEFAULT = _Default()


def parse_overrides(words: Sequence[str]) -> tuple[Overrides, list[Fault]]:
    """Sort arguments into group choices and changes; each invalid argument becomes a Fault."""
    choices: dict[str, str] = {}
    changes: list[tuple[tuple[str, ...], Any]] = []
    faults: list[Fault] = []
    typed: dict[str, str] = {}
    for word in words:
        try:
            key, value = _parse_override(word)
        except RefusedInput as refused:
            faults += refused.faults
            continue
        if key in GROUPS and not isinstance(value, _Default):
            choices[key] = str(value)
        else:
            changes.append((tuple(key.split(".")), value))
            if isinstance(value, int | float):
                typed[key] = word.partition("=")[2].strip()
    return Overrides(choices=choices, changes=tuple(changes), typed=typed), faults


def _parse_override(word: str) -> tuple[str, Any]:
    head, equals, text = word.partition("=")
    key = head.strip()
    if key.startswith("~"):
        if equals:
            _refuse(key, text, "~key resets a key to its default and takes no value")
        return _checked_key(key[1:], None), DEFAULT
    if not equals:
        _refuse("", word, "an override is key=VALUE, ~key or group=name")
    key = _checked_key(key.lstrip("+") if key.startswith(("+", "++")) else key, text)
    if len(text) > MAX_TEXT:
        _refuse(key, text, f"a value must not be longer than {MAX_TEXT:,} characters")
    if "${" in text:
        _refuse(key, text, "a value on the command line must not hold ${…}")
    return key, text.strip() if key in GROUPS else _value(key, text)


def _checked_key(key: str, text: str | None) -> str:
    if not _KEY.fullmatch(key) or "_target_" in key:
        _refuse(key, text, "a key is dotted.names made of letters, digits, - and _")
    if key.startswith("hydra"):
        _refuse(key, text, "keys that start with hydra are refused")
    return key


def _value(key: str, text: str) -> Any:
    """One YAML flow value: quoted, [list], {mapping} or a plain scalar, taken as written."""
    text = text.strip()
    if text[:1] in "!&*" and text:
        _refuse(key, text, "a value must not start with !, & or *: put it in quotes")
    if text[:1] not in ("[", "{", '"', "'"):
        try:
            return plain_scalar(text)
        except (ValueError, OverflowError):
            _refuse(key, text, "the number is too long")
    try:
        scanned = scan(text, "", where=COMMAND_LINE)
    except RefusedInput as refused:
        raise RefusedInput(
            [Fault(path=key, value=_short(text), rule=refused.faults[-1].rule, where=COMMAND_LINE)]
        ) from None
    if scanned.faults:
        raise RefusedInput(
            [
                Fault(path=".".join(filter(None, (key, f.path))), value=f.value, rule=f.rule, where=COMMAND_LINE)
                for f in scanned.faults
            ]
        )
    return scanned.data


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= 200 else text[:197] + "..."


def _refuse(path: str, value: str | None, rule: str) -> None:
    raise RefusedInput([Fault(path=_short(path) or "", value=_short(value), rule=rule, where=COMMAND_LINE)])


def merge(into: dict[str, Any], data: Mapping[str, Any]) -> None:
    """Merge mappings key by key; any other value replaces the earlier one."""
    for key, value in data.items():
        present = into.get(key)
        if isinstance(value, dict):
            if not isinstance(present, dict):
                present = into[key] = {}
            merge(present, value)
        else:
            into[key] = _copy(value)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value


def change(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set ``path``, or remove it for ``DEFAULT``; list items are reached by their index.

    Raises:
        RefusedInput: the path names a list item that does not exist.
    """
    remove = isinstance(value, _Default)
    here: Any = data
    for depth, part in enumerate(path[:-1], 1):
        if isinstance(here, list):
            here = here[_index(here, path, part)]
            continue
        if not isinstance(here.get(part), dict | list):
            if remove:
                return
            here[part] = {}
        here = here[part]
        if not isinstance(here, dict | list):  # an item of a list of plain values
            _refuse(".".join(path), None, f"{'.'.join(path[:depth])} has no keys")
    last = path[-1]
    if isinstance(here, list):
        index = _index(here, path, last)
        if remove:
            del here[index]
        else:
            here[index] = value
    elif not isinstance(here, dict):
        _refuse(".".join(path), None, f"{'.'.join(path[:-1])} has no keys")
    elif remove:
        here.pop(last, None)
    elif isinstance(value, dict):
        merge(here, {last: value})
    else:
        here[last] = value


def _index(items: list[Any], path: tuple[str, ...], part: str) -> int:
    if not part.isdecimal() or len(part) > 6 or int(part) >= len(items):
        _refuse(".".join(path), part, f"the list has {len(items)} items; the first has index 0")
    return int(part)


def resolve_references(data: dict[str, Any], default: Callable[[Sequence[str]], Any]) -> list[Fault]:
    """Replace every ``${a.b}``, in place, by the value it refers to; returns the faults (without ``where``).

    ``default`` returns the schema's default of a path that is not set, or raises KeyError.
    """
    references = _References(data, default)
    faults: list[Fault] = []

    def walk(node: Any, path: tuple[str, ...]) -> Any:
        if isinstance(node, dict):
            for key, value in node.items():
                node[key] = walk(value, (*path, key))
        elif isinstance(node, list):
            node[:] = [walk(value, (*path, str(i))) for i, value in enumerate(node)]
        elif isinstance(node, str) and "${" in node:
            name = ".".join(path)
            try:
                return references.resolved(node, (name,))
            except _Unresolved as error:
                faults.append(Fault(path=name, value=_short(node), rule=error.rule, nearest=error.nearest))
        return node

    walk(data, ())
    return faults


class _References:
    """Values that ``${a.b}`` refer to, each resolved once. ``trail``: the names on the way to it."""

    def __init__(self, data: dict[str, Any], default: Callable[[Sequence[str]], Any]) -> None:
        self._data, self._default = data, default
        self._done: dict[str, Any] = {}

    def resolved(self, value: str, trail: tuple[str, ...]) -> Any:
        """A text with its references replaced; the value itself, of any type, where the text is one reference."""
        whole = REFERENCE.fullmatch(value)
        if whole:
            return self._follow(whole[1], trail)
        parts = REFERENCE.split(value)
        for i in range(1, len(parts), 2):
            found = self._follow(parts[i], trail)
            parts[i] = "" if found is None else str(found)
        text = "".join(parts)
        if len(text) > MAX_TEXT:
            raise _Unresolved(f"text must not be longer than {MAX_TEXT:,} characters after references are resolved", ())
        if "${" in text:  # a resolved recipe that is written and read again would contain a new reference
            raise _Unresolved("resolved references must not form another reference", ())
        return text

    def _follow(self, name: str, trail: tuple[str, ...]) -> Any:
        if name in trail:
            raise _Unresolved("circular reference: " + " -> ".join((*trail, name)[:6]), ())
        if len(trail) >= MAX_HOPS:
            raise _Unresolved(f"references must not be chained more than {MAX_HOPS} deep", ())
        if name not in self._done:
            value = self._lookup(name)
            is_reference = isinstance(value, str) and "${" in value
            self._done[name] = self.resolved(value, (*trail, name)) if is_reference else value
        return self._done[name]

    def _lookup(self, name: str) -> Any:
        here: Any = self._data
        for part in name.split("."):
            if isinstance(here, dict) and part in here:
                here = here[part]
            elif isinstance(here, list) and part.isdecimal() and len(part) < 6 and int(part) < len(here):
                here = here[int(part)]
            else:
                return self._default_of(name, here, part)
        if isinstance(here, dict | list):
            raise _Unresolved(f"${{{name}}} refers to a section, not a value", ())
        return here

    def _default_of(self, name: str, section: Any, part: str) -> Any:
        try:
            return self._default(name.split("."))
        except KeyError:
            # comparing names is slow; only a hostile file has hundreds of unknown keys
            names = list(section) if isinstance(section, dict) and len(section) <= 200 else []
            raise _Unresolved(f"${{{name}}} refers to a field that is not set", nearest(part, names)) from None


class _Unresolved(Exception):
    def __init__(self, rule: str, near: tuple[str, ...]) -> None:
        super().__init__(rule)
        self.rule = rule
        self.nearest = near


def nearest(word: str, choices: Iterable[str]) -> tuple[str, ...]:
    """Up to three names most similar to ``word``, or the first few when none is similar."""
    names = sorted(set(choices))
    close = difflib.get_close_matches(word[:64], names, n=3, cutoff=0.5)
    return tuple(close or (names if len(names) <= 8 else ()))
