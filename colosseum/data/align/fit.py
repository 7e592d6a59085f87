"""The length limit of SFT and DPO: seq_length inputs and the same number of targets, so seq_length + 1 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from colosseum.data.align.encode import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of a file's rows: kept + empty + emptied + too_long = rows."""

    rows: int = 0
    kept: int = 0
    cut: int = 0
    """SFT rows truncated on the right and kept."""
    cut_tokens: int = 0
    """Tokens that were cut off."""
    empty: int = 0
    """Dropped: nothing to train on (for a pair: in one of its sides)."""
    emptied: int = 0
    """SFT rows dropped because all trained tokens were cut off."""
    too_long: int = 0
    """Pairs dropped because a side is too long: a truncated response does not express a preference."""
    tokens: int = 0
    """Tokens of kept rows."""
    trained_tokens: int = 0
    """Targets that count in the loss."""

    def plus(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})

    def sentence(self) -> str:
        """The counts of dropped and truncated rows as text."""
        parts = [f"{self.kept:,} of {self.rows:,} rows kept"]
        if self.cut:
            parts.append(f"{self.cut:,} truncated on the right, by {self.cut_tokens:,} tokens in total")
        for number, why in (
            (self.empty, "with nothing to train on"),
            (self.emptied, "with nothing to train on after truncation"),
            (self.too_long, "longer than seq_length + 1 tokens"),
        ):
            if number:
                parts.append(f"{number:,} dropped {why}")
        return "; ".join(parts)


def fit(sides: Sequence[Tokens], seq_length: int, counts: Counts) -> tuple[list[Tokens], Counts]:
    """The sequences of a row as trained (none if it is dropped), and the counts with this row added.

    Args:
        sides: one of an SFT row, two of a pair.
    """
    counts = replace(counts, rows=counts.rows + 1)
    longest, limit = max(len(s.ids) for s in sides), seq_length + 1
    if not all(s.mask[1:].any() for s in sides):
        return [], replace(counts, empty=counts.empty + 1)
    if longest > limit:
        if len(sides) == 2:
            return [], replace(counts, too_long=counts.too_long + 1)
        sides = [Tokens(s.ids[:limit], s.mask[:limit], s.spans[:limit]) for s in sides]
        if not sides[0].mask[1:].any():
            return [], replace(counts, emptied=counts.emptied + 1)
        counts = replace(counts, cut=counts.cut + 1, cut_tokens=counts.cut_tokens + longest - limit)
    for side in sides:
        side.mask[0] = False  # the first token has no preceding token that predicts it
    counts = replace(
        counts,
        kept=counts.kept + 1,
        tokens=counts.tokens + sum(len(s.ids) for s in sides),
        trained_tokens=counts.trained_tokens + sum(int(s.mask.sum()) for s in sides),
    )
    return list(sides), counts
