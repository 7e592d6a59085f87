"""The difference between two responses: Levenshtein distance, bit-parallel (Myers 1999, in Hyyrö's 2003 form)."""

from __future__ import annotations

from collections import Counter

MAX_COMPARED = 20_000
"""Maximum length of the differing parts of two texts for an exact distance; longer ones use a lower bound."""


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions and replacements that turn ``a`` into ``b``."""
    if len(a) < len(b):
        a, b = b, a
    if not b:
        return len(a)
    where: dict[str, int] = {}
    for at, character in enumerate(b):
        where[character] = where.get(character, 0) | 1 << at
    full, last, distance = (1 << len(b)) - 1, 1 << len(b) - 1, len(b)
    plus, minus = full, 0  # vertical differences of +1 and -1
    for character in a:
        match = where.get(character, 0)
        zero = (((match & plus) + plus) ^ plus) | match | minus
        up, down = minus | ~(zero | plus) & full, plus & zero
        distance += bool(up & last) - bool(down & last)
        up, down = up << 1 | 1, down << 1
        plus, minus = (down | ~(zero | up)) & full, up & zero & full
    return distance


def nearly_same(a: str, b: str, threshold: float) -> bool:
    """Whether the edit distance is at most ``threshold`` times the longer text's length."""
    allowed = int(threshold * max(len(a), len(b)))
    if abs(len(a) - len(b)) > allowed:
        return False
    a, b = _without_common_ends(a, b)
    # Each edit changes the count of at most one character on either side.
    ours, theirs = Counter(a), Counter(b)
    if max((ours - theirs).total(), (theirs - ours).total()) > allowed:
        return False
    if max(len(a), len(b)) <= allowed:
        return True
    return max(len(a), len(b)) <= MAX_COMPARED and edit_distance(a, b) <= allowed


def _without_common_ends(a: str, b: str) -> tuple[str, str]:
    start, least = 0, min(len(a), len(b))
    while start < least and a[start] == b[start]:
        start += 1
    end = 0
    while end < least - start and a[-1 - end] == b[-1 - end]:
        end += 1
    return a[start : len(a) - end], b[start : len(b) - end]
