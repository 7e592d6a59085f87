"""The schema as a tree of sections: names as YAML has them, and what an annotation is made of. The one walker."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


@functools.cache
def attributes(model: type[BaseModel]) -> Mapping[str, str]:
    """Attribute of each field by the name that YAML has for it."""
    return {info.alias or name: name for name, info in model.model_fields.items()}


def fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Fields by the name that YAML has for them."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def members(annotation: Any) -> Iterator[Any]:
    """The parts of a union, of optional and annotated types, and the items of a list; none of them is a union."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType, tuple):
        for part in get_args(annotation):
            yield from members(part)
    elif origin is Annotated:
        yield from members(get_args(annotation)[0])
    else:
        yield annotation


def sections(annotation: Any) -> list[type[BaseModel]]:
    """Those of the ``members`` that are sections."""
    return [part for part in members(annotation) if isinstance(part, type) and issubclass(part, BaseModel)]
