"""From targets to weights: water-filling under caps of epochs. Pure; thousands of sources at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from colosseum.data.blending.file import BlendFile, Source
from colosseum.errors import Fault, RefusedInput

Floats = npt.NDArray[np.float64]
CLOSE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Tokens that each source gives to the budget."""

    tokens: Floats
    wanted: Floats
    """Before caps."""


def solve(blend: BlendFile, sources: list[Source]) -> Solution:
    """Tokens of each source.

    Sources with ``share`` or ``epochs`` get just that. A tag in ``shares`` gets its share, less what such sources of
    it have; its others divide the rest by ``weight``, or by tokens to the power of ``temperature``. The sources
    without any of these divide what is left of the budget. What a cap (``max_epochs``) takes from one goes to the
    others of its group, then to all that may still grow.

    Raises:
        RefusedInput: the targets do not fit the budget, or the caps leave less text than it takes.
    """
    size = np.array([float(s.tokens) for s in sources])
    caps = np.array([s.entry.max_epochs or blend.max_epochs or np.inf for s in sources]) * size
    fixed = np.array(
        [
            s.entry.epochs * s.tokens if s.entry.epochs else s.entry.share * blend.tokens if s.entry.share else np.nan
            for s in sources
        ]
    )
    pull = np.array([s.entry.weight or 0.0 for s in sources])
    natural = (size / size.max()) ** blend.temperature
    groups = _groups(blend, sources)
    wanted = np.where(np.isnan(fixed), 0.0, fixed)
    spare = float(blend.tokens) - _claimed(blend, wanted, groups)
    if spare < -CLOSE * blend.tokens:
        raise RefusedInput([Fault(path="shares", value=None, rule="shares and epochs add up to more than the budget")])
    for number in range(len(blend.shares) + 1):
        members = np.flatnonzero((groups == number) & np.isnan(fixed))
        amount = spare
        if number < len(blend.shares):
            tag, share = list(blend.shares.items())[number]
            amount = share * blend.tokens - wanted[(groups == number) & ~np.isnan(fixed)].sum()
            if amount > CLOSE * blend.tokens and not len(members):
                rule = f"no source with the tag {tag!r} may grow to this share"
                raise RefusedInput([Fault(path=f"shares.{tag}", value=share, rule=rule)])
        if len(members):
            weights = pull[members] if pull[members].all() else natural[members]
            wanted[members] = max(0.0, amount) * weights / weights.sum()
    return Solution(tokens=_capped(wanted, caps, np.isnan(fixed), groups, blend.tokens), wanted=wanted)


def _groups(blend: BlendFile, sources: list[Source]) -> npt.NDArray[np.int64]:
    """Number of each source's tag among ``shares``; that of the rest is one more than the last."""
    tags = list(blend.shares)
    numbers: list[int] = []
    faults: list[Fault] = []
    for index, source in enumerate(sources):
        found = [tags.index(tag) for tag in source.tags if tag in blend.shares]
        if len(found) > 1:
            rule = f"has several tags of shares: {', '.join(tags[n] for n in found)}; each source counts in one"
            faults.append(Fault(path=f"sources.{index}.tags", value=list(source.tags), rule=rule))
        numbers.append(found[0] if found else len(tags))
    near = tuple(sorted({tag for source in sources for tag in source.tags})[:5])
    for tag in (tag for number, tag in enumerate(tags) if number not in numbers):
        faults.append(Fault(path=f"shares.{tag}", value=blend.shares[tag], rule="no source has this tag", nearest=near))
    for number, name in enumerate([*tags, "the sources without a share"]):
        free = [
            source.entry.weight
            for source, group in zip(sources, numbers, strict=True)
            if group == number and source.entry.share is None and source.entry.epochs is None
        ]
        if None in free and any(free):
            faults.append(Fault(path="sources", value=None, rule=f"{name}: give all of them a weight, or none"))
    if faults:
        raise RefusedInput(faults[:10])
    return np.array(numbers)


def _claimed(blend: BlendFile, fixed: Floats, groups: npt.NDArray[np.int64]) -> float:
    """Tokens that shares of tags and fixed sources take of the budget."""
    claimed = float(fixed[groups == len(blend.shares)].sum())
    for number, (tag, share) in enumerate(blend.shares.items()):
        inside = float(fixed[groups == number].sum())
        if inside > share * blend.tokens * (1 + CLOSE):
            rule = f"its sources alone have {inside / blend.tokens:.4f}"
            raise RefusedInput([Fault(path=f"shares.{tag}", value=share, rule=rule)])
        claimed += share * blend.tokens
    return claimed


def _capped(
    wanted: Floats, caps: Floats, free: npt.NDArray[np.bool_], groups: npt.NDArray[np.int64], budget: float
) -> Floats:
    """``wanted`` under the caps: first within each group, then over all free sources."""
    tokens = wanted.copy()
    for group in np.unique(groups):
        _fill(tokens, caps, np.flatnonzero((groups == group) & free), wanted[groups == group].sum(), groups == group)
    _fill(tokens, caps, np.flatnonzero(free), budget, np.ones(len(tokens), np.bool_))
    if tokens.sum() < budget * (1 - 1e-6):
        rule = f"with max_epochs the sources hold {tokens.sum():,.0f} tokens of this budget"
        raise RefusedInput([Fault(path="tokens", value=int(budget), rule=rule)])
    return tokens


def _fill(
    tokens: Floats, caps: Floats, members: npt.NDArray[np.int64], total: float, scope: npt.NDArray[np.bool_]
) -> None:
    """Raises the members in proportion, none above its cap, until all in ``scope`` add up to ``total``."""
    over = np.zeros(len(members), np.bool_)
    while len(members):
        over |= tokens[members] >= caps[members]
        tokens[members[over]] = caps[members[over]]
        missing = total - tokens[scope].sum()
        growing = members[~over]
        if missing <= CLOSE * total or not len(growing) or not tokens[growing].sum():
            return
        tokens[growing] *= 1 + missing / tokens[growing].sum()
