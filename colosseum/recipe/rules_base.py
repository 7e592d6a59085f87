"""Building blocks of rules: facts computed once per recipe, findings, and candidate values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from colosseum.recipe import derived
from colosseum.recipe.base import AUTO, Auto, Section
from colosseum.recipe.schema import Recipe
from colosseum.recipe.walk import attributes

LARGEST = 10**15
"""Bound of the schema's counts."""
_SEARCHED = 512


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule: the field, the rule, and candidate values, best first (checked later)."""

    path: str
    rule: str
    tries: Iterable[Any] = ()

    def candidates(self, most: int) -> Iterator[Any]:
        """The first ``most`` candidates, without duplicates."""
        seen: set[Any] = set()
        for value in islice(self.tries, most):
            if value not in seen:
                seen.add(value)
                yield value


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A recipe and the values its rules use; None = unknown, because a field is ``auto`` or a rule is broken."""

    recipe: Recipe
    tp: int | None
    pp: int | None
    vpp: int | None
    cp: int | None
    mbs: int | None
    replica: int
    """Ranks per replica: tp * pp * cp, where ``auto`` counts as 1."""
    dp: int | None
    microbatches: int | None
    sequence_parallel: bool | None
    stage_layers: tuple[int, ...] | None
    """Layers of the first, an interior (where there is one) and the last pipeline rank (``split_layers``)."""
    total_steps: int | None

    @classmethod
    def of(cls, recipe: Recipe) -> Facts:
        par = recipe.parallelism
        tp, pp, vpp, cp, mbs = (given(v) for v in (par.tp, par.pp, par.vpp, par.cp, recipe.batch.mbs))
        replica = (tp or 1) * (pp or 1) * (cp or 1)
        dp = None
        if tp and pp and cp and recipe.resources.gpus % replica == 0:
            dp = recipe.resources.gpus // replica
        microbatches = None
        if dp and mbs and recipe.batch.gbs % (dp * mbs) == 0:
            microbatches = recipe.batch.gbs // (dp * mbs)
        parallel: bool | None = None
        if par.sequence_parallel != AUTO:
            parallel = par.sequence_parallel
        elif tp is not None:
            parallel = tp > 1
        return cls(
            recipe=recipe,
            tp=tp,
            pp=pp,
            vpp=vpp,
            cp=cp,
            mbs=mbs,
            replica=replica,
            dp=dp,
            microbatches=microbatches,
            sequence_parallel=parallel,
            stage_layers=derived.split_layers(recipe),
            total_steps=derived.total_steps(recipe),
        )

    @property
    def sharded_ranks(self) -> int | None:
        """dp * cp: the ranks that share gradients and optimizer states."""
        return None if self.dp is None or self.cp is None else self.dp * self.cp

    @property
    def distributed_optimizer(self) -> bool | None:
        """The recipe's value; auto = when dp * cp > 1."""
        return derived.distributed_optimizer(self.recipe, self.sharded_ranks)

    @property
    def sharded_optimizer(self) -> bool | None:
        """Whether engine mcore uses the distributed optimizer's state format: also when dp * cp = 1.

        On one rank the result is the same, and the saved state can be loaded on any number of ranks.
        """
        if self.sharded_ranks == 1:
            return True
        return self.distributed_optimizer


Rule = Callable[[Facts], Iterator[Finding]]


def given(value: int | Auto) -> int | None:
    """The number, or None for ``auto``."""
    return None if value == AUTO else value


# --- fields by path ----------------------------------------------------------------------------------------------


def value_at(recipe: Recipe, path: str) -> Any:
    """The value at a dotted path, as plain data."""
    here: Any = recipe
    for part in path.split("."):
        section: type[Section] = type(here)
        here = getattr(here, attributes(section)[part])
    if isinstance(here, Section):
        return here.model_dump(mode="json", by_alias=True)
    return list(here) if isinstance(here, tuple) else here


def replaced(recipe: Recipe, path: str, value: Any) -> Recipe:
    """The recipe with one value changed; the value must be of the field's type and range."""
    return _replaced(recipe, path.split("."), value)  # type: ignore[return-value]


def _replaced(section: Section, parts: list[str], value: Any) -> Section:
    name = attributes(type(section))[parts[0]]
    new = value if len(parts) == 1 else _replaced(getattr(section, name), parts[1:], value)
    return section.model_copy(update={name: new})


# --- candidates --------------------------------------------------------------------------------------------------


def multiples(near: int, unit: int) -> Iterator[int]:
    """Multiples of ``unit``, the nearest to ``near`` first; between ``unit`` and the schema's bound."""
    low = near // unit * unit
    for i in range(_SEARCHED):
        pair = (low - i * unit, low + (i + 1) * unit)
        yield from sorted((m for m in pair if unit <= m <= LARGEST), key=lambda m: abs(m - near))


def divisors(number: int, near: int) -> Iterator[int]:
    """Divisors of ``number``, the nearest to ``near`` first, then 1 and ``number``; the search distance is bounded."""
    near = min(max(near, 1), number)
    close = (d for i in range(_SEARCHED) for d in ((near - i, near + i) if i else (near,)) if 0 < d <= number)
    yield from chain((d for d in close if number % d == 0), (1, number))
