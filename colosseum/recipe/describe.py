"""Every field of a Recipe: path, legal values, default, meaning, which part reads it. Generated from the schema."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from colosseum.recipe import walk
from colosseum.recipe.base import Section
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import FORMS

READERS = {
    "name": "launcher",
    "engine": "launcher",
    "task": "engine, planner",
    "model": "engine, planner",
    "tokenizer": "engine",
    "data": "engine",
    "batch": "engine, planner",
    "parallelism": "engine, planner",
    "recompute": "engine, planner",
    "precision": "engine, planner",
    "optimizer": "engine, planner",
    "train": "engine, planner",
    "overlap": "engine, planner",
    "fusion": "engine, planner",
    "checkpoint": "engine, planner",
    "stability": "engine",
    "resources": "launcher, planner",
    "hardware": "planner",
    "cluster": "launcher, planner",
}
"""Which parts read a section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDoc:
    """One field of the schema."""

    path: str
    legal: str
    default: Any
    required: bool
    meaning: str

    @property
    def section(self) -> str:
        return self.path.split(".")[0]


def catalogue() -> dict[str, FieldDoc]:
    """All fields by dotted path, in the schema's order; a field that several tasks share is listed once."""
    found: dict[str, FieldDoc] = {}
    for doc in _fields(Recipe, ""):
        if (before := found.get(doc.path)) is not None:
            legal = dict.fromkeys([*before.legal.split(" | "), *doc.legal.split(" | ")])
            doc = replace(doc, legal=" | ".join(legal))
        found[doc.path] = doc
    return found


def plain(value: Any) -> Any:
    """A value or default of a field as JSON can hold it."""
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    return value if isinstance(value, str | int | float | bool | dict | None) else str(value)


def text_of(value: Any) -> str:
    """A value as YAML would write it, on one line."""
    line: str = yaml.safe_dump(plain(value), default_flow_style=True, width=10**6, allow_unicode=True)
    return line.removesuffix("\n").removesuffix("\n...")


def _fields(model: type[BaseModel], prefix: str) -> Iterator[FieldDoc]:
    for name, info in walk.fields(model).items():
        inner = [] if get_origin(info.annotation) is tuple else walk.sections(info.annotation)
        if not inner:
            yield _doc(prefix + name, info)
        for section in inner:
            yield from _fields(section, f"{prefix}{name}.")


def _doc(path: str, info: FieldInfo) -> FieldDoc:
    required = info.is_required()
    default = None if required else info.get_default(call_default_factory=True)
    return FieldDoc(
        path=path,
        legal=_legal(info.annotation, info.metadata),
        default=default,
        required=required,
        meaning=info.description or "",
    )


_WORDS = {int: "integer", float: "number", bool: "true or false", str: "text", **FORMS}


def _legal(annotation: Any, metadata: Any = ()) -> str:
    """The legal values as text."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return _legal(inner, more)
    if origin is Literal:
        return " | ".join(str(value) for value in get_args(annotation))
    if origin in (Union, types.UnionType):
        parts = [_legal(part) for part in get_args(annotation) if part is not type(None)]
        return " | ".join([*parts, *(["null"] if type(None) in get_args(annotation) else [])])
    if origin is tuple:
        return f"list of {_legal(get_args(annotation)[0])}"
    if origin is dict:
        return "mapping of text to text"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "{" + ", ".join(walk.fields(annotation)) + "}"
    return _WORDS.get(annotation, str(annotation)) + _bounds(metadata)


def _bounds(metadata: Any) -> str:
    """``>= 1`` and its like, of the annotations' constraints; bounds of absurd size are left out."""
    found = []
    for item in (x for entry in metadata for x in (getattr(entry, "metadata", None) or [entry])):
        for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<=")):
            value = getattr(item, name, None)
            if value is not None and abs(value) < 10**15 and value != 1e30:
                found.append(f"{sign} {value}")
    return f" {' '.join(found)}" if found else ""
