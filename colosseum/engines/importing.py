"""Foreign settings -> the data of a recipe, and what of them was unknown, not carried over, or read otherwise. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from colosseum.engines.fields import table

UNKNOWN, UNREAD, LEFT = "unknown", "not read", "left out"
KINDS = {
    UNKNOWN: "unknown key: misspelt, or no longer read by any known version",
    UNREAD: "the value is known only at run time, or is not valid here: set it yourself",
    LEFT: "a known key without a field in a recipe: check whether you need it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One foreign key that did not become a field."""

    key: str
    value: Any
    kind: str
    nearest: tuple[str, ...] = ()


@dataclass(slots=True)
class Imported:
    """A recipe's data by dotted field, and findings."""

    engine: str
    fields: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def nested(self) -> dict[str, Any]:
        """Sections as a recipe's YAML has them."""
        found: dict[str, Any] = {}
        for path, value in self.fields.items():
            *sections, last = path.split(".")
            here = found
            for section in sections:
                here = here.setdefault(section, {})
            here[last] = value
        return found


def direct(engine: str, plain: Iterable[str]) -> dict[str, str]:
    """Foreign key -> field, for the fields of ``plain``, whose values are the same on both sides."""
    names = table()
    return {names[path].names[engine].lstrip("+"): path for path in plain}


MAX_GUESSED = 50
"""So many unknown keys of a file are compared with all known ones, which takes a hundredth of a second each."""


def finding(key: str, value: Any, known: Iterable[str], before: int = 0) -> Finding:
    """A key that no field takes: known to the tool, or not.

    Args:
        before: findings of this file so far.
    """
    names = set(known)
    if key in names:
        return Finding(key=key, value=value, kind=LEFT)
    guess = before < MAX_GUESSED and len(key) <= 64
    near = tuple(difflib.get_close_matches(key, names, n=2, cutoff=0.75)) if guess else ()
    return Finding(key=key, value=value, kind=UNKNOWN, nearest=near)


Converter = Callable[[Mapping[str, Any]], Any]
