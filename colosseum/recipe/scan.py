"""Read YAML as data only: plain values and the line of each, with size limits.

The text is read as a flat stream of events, so nesting and aliases cannot exhaust stack, memory or time. Tags,
duplicate keys, merge keys and interpolation other than ``${a.b.c}`` are faults; no object is constructed, no code run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from colosseum.errors import Fault, RefusedInput

MAX_BYTES = 1_000_000
MAX_NODES = 10_000
MAX_ALIASES = 100
MAX_DEPTH = 32
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*)\}")
REFERENCE_RULE = "a reference must be ${section.key}; environment variables and other resolvers are not supported"

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_scalars = yaml.constructor.SafeConstructor()
_resolver: Any = yaml.resolver.Resolver()
# YAML 1.1 reads 1e-5 (no dot) as text, other parsers as a number. So text of this form is written in quotes.
EXPONENT = re.compile(r"[-+]?\d[\d_]*(?:\.\d*)?[eE][-+]?\d+")

Path_ = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """The content of one YAML text."""

    data: Any
    """dict (keys are always str), list or scalar; None for empty text."""
    lines: dict[Path_, int]
    """0-based line of every value; a list item's key is its index."""
    faults: tuple[Fault, ...]
    """Faults that do not stop the reader."""


def read_text(path: Path, shown: str) -> str:
    """The text of a YAML file.

    Raises:
        RefusedInput: the file is missing, not a regular file, unreadable, larger than 1 MB or not UTF-8.
    """
    try:
        if not path.is_file():
            raise RefusedInput([Fault(path="", value=shown, rule=f"{shown}: no such file")])
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RefusedInput([Fault(path="", value=shown, rule=f"{shown}: the file cannot be read: {reason}")]) from None
    if len(raw) > MAX_BYTES:
        raise RefusedInput([Fault(path="", value=shown, rule=f"{shown}: a YAML file must not be larger than 1 MB")])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RefusedInput(
            [Fault(path="", value=None, rule="the file must be UTF-8", where=f"{shown}:{line}")]
        ) from None


def plain_scalar(text: str) -> Any:
    """The value of an unquoted YAML 1.1 scalar: null, bool, int, float or else the text (dates stay text).

    Raises:
        ValueError: an integer of more digits than Python converts.
    """
    tag = _resolver.resolve(yaml.ScalarNode, text, (True, False)).rsplit(":", 1)[-1]
    node = yaml.ScalarNode(f"tag:yaml.org,2002:{tag}", text)
    if tag == "null":
        return None
    if tag == "bool":
        return _scalars.construct_yaml_bool(node)
    if tag == "int":
        return _scalars.construct_yaml_int(node)
    if tag == "float":
        return _scalars.construct_yaml_float(node)
    if EXPONENT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


def scan(text: str, shown: str, *, where: str | None = None, max_nodes: int = MAX_NODES) -> Scanned:
    """Read one YAML document; ``shown`` names the file in faults (``where`` replaces ``file:line``).

    Raises:
        RefusedInput: a syntax error, or a limit is exceeded.
    """
    reader = _Reader(shown, where, max_nodes)
    try:
        for event in yaml.parse(text, Loader=_Loader):
            reader.take(event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable text"
        line = mark.line if mark is not None else text.count("\n", 0, getattr(error, "position", 0) or 0)
        raise RefusedInput([reader.fault((), None, f"invalid YAML: {problem}", line)]) from None
    return Scanned(data=reader.root, lines=reader.lines, faults=tuple(reader.faults))


@dataclass(slots=True)
class _Open:
    """A mapping or sequence whose end event was not read yet."""

    value: dict[str, Any] | list[Any]
    path: Path_
    anchor: str | None
    first_node: int
    key: str | None = None


@dataclass(slots=True)
class _Anchored:
    value: Any
    nodes: int


@dataclass(slots=True)
class _Reader:
    shown: str
    where: str | None
    max_nodes: int
    root: Any = None
    lines: dict[Path_, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    stack: list[_Open] = field(default_factory=list)
    anchors: dict[str, _Anchored] = field(default_factory=dict)
    nodes: int = 0
    aliases: int = 0
    documents: int = 0

    def fault(self, path: Path_, value: Any, rule: str, line: int) -> Fault:
        return Fault(path=".".join(path), value=value, rule=rule, where=self.where or f"{self.shown}:{line + 1}")

    def stop(self, rule: str, line: int) -> None:
        raise RefusedInput([*self.faults, self.fault((), None, rule, line)])

    def take(self, event: Any) -> None:
        line = event.start_mark.line
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                self.stop("a file must hold one YAML document", line)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event.anchor, line)
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event, line)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open(event, line)
        elif isinstance(event, yaml.CollectionEndEvent):
            done = self.stack.pop()
            if done.anchor:
                self.anchors[done.anchor] = _Anchored(done.value, self.nodes - done.first_node)

    def _count(self, nodes: int, line: int) -> None:
        self.nodes += nodes
        if self.nodes > self.max_nodes:
            self.stop(f"a YAML file must not hold more than {self.max_nodes:,} values, with aliases expanded", line)

    def _alias(self, anchor: Any, line: int) -> None:
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            self.stop(f"a YAML file must not hold more than {MAX_ALIASES} aliases", line)
        target = self.anchors.get(anchor)
        if target is None:
            self.stop(f"the alias *{anchor[:64]} must come after the whole value of its anchor", line)
            return
        self._count(target.nodes, line)
        if self.stack and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None:
            self.stop("a key must be text, not an alias", line)
        self._place(target.value, line)

    def _scalar(self, event: Any, line: int) -> None:
        self._count(1, line)
        top = self.stack[-1] if self.stack else None
        if event.tag:
            self._tag(event.tag, line)
        if top and isinstance(top.value, dict) and top.key is None:
            self._key(top, event.value, line)
            return
        value = event.value
        path = self._path_of_next()
        if event.implicit[0]:
            try:
                value = plain_scalar(event.value)
            except (ValueError, OverflowError):
                self.faults.append(self.fault(path, event.value[:64], "the number is too long", line))
        if isinstance(value, str) and "${" in REFERENCE.sub("", value):
            self.faults.append(self.fault(path, value[:200], REFERENCE_RULE, line))
        if event.anchor:
            self.anchors[event.anchor] = _Anchored(value, 1)
        self._place(value, line)

    def _key(self, top: _Open, key: str, line: int) -> None:
        path = (*top.path, key)
        if key == "<<":
            self.faults.append(self.fault(path, None, "merge keys are not supported; use a defaults list", line))
        elif key == "_target_":
            self.faults.append(self.fault(path, None, "a recipe is data: _target_ is refused", line))
        elif "${" in key:
            self.faults.append(self.fault(path, None, "a key must not contain a reference", line))
        if key in top.value:
            earlier = self.lines.get(path, line) + 1
            self.faults.append(self.fault(path, None, f"duplicate key, first set in line {earlier}", line))
        self.lines[path] = line
        top.key = key

    def _open(self, event: Any, line: int) -> None:
        self._count(1, line)
        if len(self.stack) >= MAX_DEPTH:
            self.stop(f"YAML must not be nested more than {MAX_DEPTH} deep", line)
        if self.stack and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None:
            self.stop("a key must be text", line)
        if event.tag:
            self._tag(event.tag, line)
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        path = self._path_of_next()
        self._place(value, line)
        self.stack.append(_Open(value, path, event.anchor, self.nodes - 1))

    def _tag(self, tag: str, line: int) -> None:
        self.faults.append(self.fault(self._path_of_next(), tag[:64], "YAML tags are refused: a recipe is data", line))

    def _path_of_next(self) -> Path_:
        if not self.stack:
            return ()
        top = self.stack[-1]
        return (*top.path, top.key or "" if isinstance(top.value, dict) else str(len(top.value)))

    def _place(self, value: Any, line: int) -> None:
        path = self._path_of_next()
        self.lines.setdefault(path, line)  # the line of a key is already recorded
        if not self.stack:
            self.root = value
            return
        top = self.stack[-1]
        if isinstance(top.value, list):
            top.value.append(value)
        else:
            top.value[top.key or ""] = value
            top.key = None
