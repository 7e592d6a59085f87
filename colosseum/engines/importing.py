"""Foreign settings -> the data of a recipe, and what of them was unknown, not carried over, or read otherwise. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from colosseum.engines.fields import table
from colosseum.engines.foreign_options import Treatment
from colosseum.errors import Fault, RefusedInput

REFUSED, DECIDE, UNKNOWN, UNREAD = "refused", "decide", "unknown", "not read"
MISSING, HARMLESS = "missing", "harmless"
KINDS = {
    REFUSED: "another architecture or task than a recipe describes",
    DECIDE: "changes the training: decide",
    UNKNOWN: "unknown key: misspelt, or no longer read by any known version",
    UNREAD: "the value is known only at run time, or is not valid here: set it yourself",
    MISSING: "not in the file, and the tool has no default for it: set it yourself",
    HARMLESS: "does not change what is trained",
}
OPEN = (DECIDE, UNKNOWN, UNREAD)
"""Kinds for which a recipe is written only if the user accepts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One foreign key that did not become a field."""

    key: str
    value: Any
    kind: str
    nearest: tuple[str, ...] = ()
    reason: str = ""
    """What it does, or why it was not read."""


@dataclass(slots=True)
class Imported:
    """A recipe's data by dotted field, and findings."""

    engine: str
    fields: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def of(self, *kinds: str) -> list[Finding]:
        """Findings of some kinds."""
        return [finding for finding in self.findings if finding.kind in kinds]

    def add(self, key: str, value: Any, kind: str, reason: str = "") -> None:
        """One more finding."""
        self.findings.append(Finding(key=key, value=value, kind=kind, reason=reason))

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


def finding(
    key: str, value: Any, treatments: Mapping[str, Treatment], known: Iterable[str], before: int = 0
) -> Finding:
    """A key that no field takes: what it does by the tool's table, or unknown.

    Args:
        before: findings of this file so far.
    """
    names = set(known)
    if key in names:
        row = treatment(key, treatments) or Treatment(kind=DECIDE, reason="a recipe has no field for it")
        return Finding(key=key, value=value, kind=row.kind, reason=row.reason)
    guess = before < MAX_GUESSED and len(key) <= 64
    near = tuple(difflib.get_close_matches(key, names, n=2, cutoff=0.75)) if guess else ()
    return Finding(key=key, value=value, kind=UNKNOWN, nearest=near)


def treatment(key: str, treatments: Mapping[str, Treatment]) -> Treatment | None:
    """The row of a key: its own, else that of the longest pattern."""
    if key in treatments:
        return treatments[key]
    matching = [name for name in treatments if "*" in name and fnmatchcase(key, name)]
    return treatments[max(matching, key=len)] if matching else None


MAX_SHOWN = 200
"""Findings of one kind that are printed: a table of thousands takes seconds."""


def refuse(imported: Imported, *, accepted: bool) -> None:
    """Stops an import that would train something else than its file.

    Args:
        accepted: the user has seen what is open (``--accept``).

    Raises:
        RefusedInput: the file describes another architecture or task; or something is open.
    """
    wrong = imported.of(REFUSED)
    if not wrong and (accepted or not imported.of(*OPEN)):
        return
    found = wrong or imported.of(*OPEN)
    faults = [_fault(finding) for finding in found[:MAX_SHOWN]]
    if len(found) > MAX_SHOWN:
        faults.append(Fault(path="", value=None, rule=f"and {len(found) - MAX_SHOWN:,} more"))
    if not wrong:
        faults.append(Fault(path="--accept", value=False, rule="writes the recipe without them, for you to complete"))
    raise RefusedInput(faults)


def _fault(finding: Finding) -> Fault:
    rule = f"{KINDS[finding.kind]}: {finding.reason}" if finding.reason else KINDS[finding.kind]
    value = True if finding.value == "" else finding.value
    return Fault(path=finding.key, value=value, rule=rule, nearest=finding.nearest)
