"""What a blend comes to: weights, samples and epochs as megatron-core draws them, drift from the base, warnings."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from colosseum.data.blending.file import BlendFile, Source
from colosseum.data.blending.solve import Solution

MOVERS = 5
VANISHING = 0.1
"""A tag with less than this part of its base share is warned of."""
ACTS_OTHERWISE = 0.01
"""Relative difference between the share that is drawn and the one that is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One source of the blend."""

    path: str
    tags: tuple[str, ...]
    available: int
    """Tokens of its training part."""
    weight: float
    samples: int
    tokens: int
    """Drawn: samples of seq_length tokens."""
    epochs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    rows: tuple[Row, ...]
    samples: int
    seq_length: int
    split: str
    tags: Mapping[str, tuple[int, float, float]]
    """Tokens drawn, share, share of the base, by tag."""
    kl_nats: float | None
    """KL(blend || base) over the tags of the base; None = the blend has something the base has not."""
    warnings: tuple[str, ...]

    @property
    def tokens(self) -> int:
        return self.samples * self.seq_length

    def movers(self) -> list[tuple[str, float, float]]:
        """Tags whose share moves most: tag, share of the base, share of the blend."""
        rows = [(tag, base, share) for tag, (_, share, base) in self.tags.items()]
        return sorted(rows, key=lambda row: -abs(row[2] - row[1]))[:MOVERS]

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": "colosseum.blend/1",
            "tokens": self.tokens,
            "samples": self.samples,
            "seq_length": self.seq_length,
            "sources": [
                {
                    "path": row.path,
                    "tags": list(row.tags),
                    "available_tokens": row.available,
                    "weight": row.weight,
                    "samples": row.samples,
                    "tokens": row.tokens,
                    "epochs": row.epochs,
                }
                for row in self.rows
            ],
            "tags": {tag: {"tokens": t, "share": s, "base_share": b} for tag, (t, s, b) in self.tags.items()},
            "kl_nats": self.kl_nats,
            "warnings": list(self.warnings),
        }

    def as_yaml(self) -> str:
        """The keys of a recipe's ``data`` section, for a file of conf/data/ or a recipe."""
        blend = [
            {"path": row.path, "weight": row.weight, **({"tags": list(row.tags)} if row.tags else {})}
            for row in self.rows
            if row.samples
        ]
        head = f"# {self.tokens:,} tokens in {self.samples:,} sequences of {self.seq_length:,}\n"
        return head + yaml.safe_dump({"blend": blend, "split": self.split}, sort_keys=False, allow_unicode=True)


def drawn(weights: Sequence[float], samples: int) -> list[int]:
    """Samples of each source after ``samples`` draws.

    megatron-core draws at each position the source that lags most behind its weight; for many samples that is the
    weight times their number, each source within a sample or two of it. Here: the largest remainders.
    """
    exact = np.asarray(weights, np.float64) / math.fsum(weights) * samples
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[: samples - int(counts.sum())]] += 1
    return [int(n) for n in counts]


def report(blend: BlendFile, sources: Sequence[Source], solution: Solution) -> Report:
    """The blend in samples of megatron-core, and what should be said of it."""
    samples = max(1, blend.tokens // blend.seq_length)
    weights = [float(f"{share:.9g}") for share in solution.tokens / solution.tokens.sum()]
    rows = tuple(
        Row(
            path=str(source.path),
            tags=source.tags,
            available=source.tokens,
            weight=weight,
            samples=count,
            tokens=count * blend.seq_length,
            epochs=count / source.samples,
        )
        for source, weight, count in zip(sources, weights, drawn(weights, samples), strict=True)
    )
    base = _base(blend, sources)
    total = samples * blend.seq_length
    by_tag: dict[str, int] = defaultdict(int)
    for row in rows:
        for tag in row.tags or ("(no tag)",):
            by_tag[tag] += row.tokens
    tags = {
        tag: (by_tag.get(tag, 0), by_tag.get(tag, 0) / total, base.get(tag, 0.0))
        for tag in sorted(by_tag.keys() | base.keys(), key=lambda t: (-by_tag.get(t, 0), t))
    }
    return Report(
        rows=rows,
        samples=samples,
        seq_length=blend.seq_length,
        split=blend.split,
        tags=tags,
        kl_nats=_kl({tag: share for tag, (_, share, _) in tags.items()}, base),
        warnings=tuple(_warnings(blend, rows, tags, solution)),
    )


def _base(blend: BlendFile, sources: Sequence[Source]) -> dict[str, float]:
    """Shares of the base by tag: those of the file, or what the sources have without any target."""
    if blend.base:
        return dict(blend.base)
    total = sum(source.tokens for source in sources)
    shares: dict[str, float] = defaultdict(float)
    for source in sources:
        for tag in source.tags or ("(no tag)",):
            shares[tag] += source.tokens / total
    return dict(shares)


def _kl(blend: Mapping[str, float], base: Mapping[str, float]) -> float | None:
    """Kullback and Leibler 1951, in nats; both normalised, since tags may overlap."""
    total, base_total = math.fsum(blend.values()), math.fsum(base.values())
    terms = []
    for tag, share in blend.items():
        if share > 0:
            if not base.get(tag):
                return None
            terms.append(share / total * math.log((share / total) / (base[tag] / base_total)))
    return max(0.0, math.fsum(terms))


def _warnings(
    blend: BlendFile, rows: Sequence[Row], tags: Mapping[str, tuple[int, float, float]], solution: Solution
) -> Iterator[str]:
    for row in rows:
        if row.epochs > blend.warn_epochs:
            yield f"{row.path} is repeated {row.epochs:.1f} times (more than {blend.warn_epochs:g})"
        if not row.samples:
            yield f"{row.path} is never drawn: its weight {row.weight:g} is less than one sample of the blend"
    for path, times in Counter(row.path for row in rows).items():
        if times > 1:
            yield f"{path} stands in the blend {times} times: all of them draw the same text"
    for tag, (_, share, base) in tags.items():
        if base > 0 and share < VANISHING * base:
            yield f"{tag} almost vanishes: {share:.2%} of the blend, {base:.2%} of the base"
    yield from _otherwise(rows, solution)


def _otherwise(rows: Sequence[Row], solution: Solution) -> Iterator[str]:
    """Sources that do not get what is written for them: held back by a cap, or too few samples for their weight."""
    samples, capped = sum(row.samples for row in rows), 0
    wanted, given = (part / part.sum() for part in (solution.wanted, solution.tokens))
    for row, want, share in zip(rows, wanted.tolist(), given.tolist(), strict=True):
        if share < want * (1 - ACTS_OTHERWISE):
            capped += 1
            if capped <= MOVERS:
                yield f"{row.path} has {share:.2%} instead of {want:.2%}: max_epochs"
        elif row.samples and abs(row.samples / samples - share) > ACTS_OTHERWISE * share:
            yield f"{row.path} is drawn {row.samples} times where its weight says {share * samples:.1f}"
    if capped > MOVERS:
        yield f"{capped - MOVERS:,} more sources are held back by max_epochs"
