"""One length rule for SFT and DPO: at most seq_length inputs with as many targets, so seq_length + 1 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from colosseum.data.align.encode import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of a file's rows. kept + empty + emptied + too_long = rows."""

    rows: int = 0
    kept: int = 0
    cut: int = 0
    """SFT rows kept after a cut on the right."""
    cut_tokens: int = 0
    """Tokens that these cuts took away."""
    empty: int = 0
    """Dropped: nothing to train on (of a pair: in one of its sides)."""
    emptied: int = 0
    """SFT rows dropped because all that was trained lay behind the cut."""
    too_long: int = 0
    """Pairs dropped because a side is too long: a cut answer is no preference."""
    tokens: int = 0
    """Of kept rows."""
    trained_tokens: int = 0
    """Targets that the loss counts."""

    def plus(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})

    def sentence(self) -> str:
        """What was dropped and cut, in words."""
        parts = [f"{self.kept:,} of {self.rows:,} rows kept"]
        if self.cut:
            parts.append(f"{self.cut:,} cut on the right by {self.cut_tokens:,} tokens")
        for number, why in (
            (self.empty, "with nothing to train on"),
            (self.emptied, "with nothing to train on before the cut"),
            (self.too_long, "longer than seq_length + 1 tokens"),
        ):
            if number:
                parts.append(f"{number:,} dropped {why}")
        return "; ".join(parts)


def fit(sides: Sequence[Tokens], seq_length: int, counts: Counts) -> tuple[list[Tokens], Counts]:
    """The sequences of a row as they are trained, none where it is dropped, and the counts with this row in them.

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
        side.mask[0] = False  # nothing comes before it that could predict it
    counts = replace(
        counts,
        kept=counts.kept + 1,
        tokens=counts.tokens + sum(len(s.ids) for s in sides),
        trained_tokens=counts.trained_tokens + sum(int(s.mask.sum()) for s in sides),
    )
    return list(sides), counts
