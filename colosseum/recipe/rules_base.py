"""What rules are made of: the facts of a recipe worked out once, findings, and candidates for a better value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from colosseum.recipe.schema import AUTO, Auto, Recipe, Section

LARGEST = 10**15
"""Bound of the schema's counts."""
_ALIASES = {"from": "source", "async": "async_save"}
_SEARCHED = 512


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule: the field to blame, why, and values that may be legal, best first (checked later)."""

    path: str
    rule: str
    tries: Iterable[Any] = ()

    def candidates(self, most: int) -> Iterator[Any]:
        """The first ``most`` candidates, each once."""
        seen: set[Any] = set()
        for value in islice(self.tries, most):
            if value not in seen:
                seen.add(value)
                yield value


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A recipe with what its rules ask for; None = unknown, because some field says ``auto`` or a rule is broken."""

    recipe: Recipe
    tp: int | None
    pp: int | None
    vpp: int | None
    cp: int | None
    mbs: int | None
    replica: int
    """Ranks of one replica, as far as they are given."""
    dp: int | None
    microbatches: int | None
    sequence_parallel: bool | None
    stage_layers: tuple[int, ...] | None
    """Layers of the first, an interior (where there is one) and the last pipeline rank; see ``split_layers``."""
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
            stage_layers=split_layers(recipe),
            total_steps=_total_steps(recipe),
        )

    @property
    def sharded_ranks(self) -> int | None:
        """dp * cp: the ranks that share gradients and optimizer states."""
        return None if self.dp is None or self.cp is None else self.dp * self.cp

    @property
    def distributed_optimizer(self) -> bool | None:
        """As the schema says: auto = when dp * cp > 1."""
        choice = self.recipe.optimizer.distributed
        if choice != AUTO:
            return choice
        return None if self.sharded_ranks is None else self.sharded_ranks > 1

    @property
    def sharded_optimizer(self) -> bool | None:
        """Whether engine mcore keeps the distributed optimizer's states: also where there is one rank to share among.

        On one rank it computes the same, and what it saves can be read on any number of them.
        """
        if self.sharded_ranks == 1:
            return True
        return self.distributed_optimizer


Rule = Callable[[Facts], Iterator[Finding]]


def given(value: int | Auto) -> int | None:
    """The number, or None for ``auto``."""
    return None if value == AUTO else value


def split_layers(recipe: Recipe) -> tuple[int, ...] | None:
    """Layers of the first, an interior and the last pipeline rank; None when unknown or when they do not come out even.

    megatron-core, transformer_block.get_num_layers_to_build: ranks given by first/last_stage_layers apart, the others
    share alike; an accounted embedding or loss takes one layer's place.
    """
    par, layers = recipe.parallelism, recipe.model.num_layers
    pp = given(par.pp)
    embedding, loss = par.account_for_embedding_in_pipeline_split, par.account_for_loss_in_pipeline_split
    if pp is None or embedding == AUTO or loss == AUTO:
        return None
    first, last = par.first_stage_layers, par.last_stage_layers
    if first is None and last is None:
        each, rest = divmod(layers + embedding + loss, pp)
        if rest or not each:
            return None
        if pp == 1:
            return (layers,)
        return (each - embedding, *([each] if pp > 2 else []), each - loss)
    if pp == 1:
        return None
    others = pp - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    if others < 0 or rest < 0 or (others == 0) != (rest == 0) or (others and rest % others):
        return None
    each = rest // others if others else 0
    ends = (each if first is None else first, each if last is None else last)
    return (ends[0], *([each] if pp > 2 else []), ends[1])


def _total_steps(recipe: Recipe) -> int | None:
    """Optimizer steps, when exactly one length is given and its data are known."""
    train, batch = recipe.train, recipe.batch
    if [train.steps, train.tokens, train.epochs].count(None) != 2:
        return None
    if train.steps is not None:
        return train.steps
    if train.tokens is not None:
        return train.tokens // (batch.gbs * batch.seq_length)
    rows = recipe.data.train_samples
    return None if rows is None or train.epochs is None else train.epochs * rows // batch.gbs


# --- fields by path ----------------------------------------------------------------------------------------------


def value_at(recipe: Recipe, path: str) -> Any:
    """The value at a dotted path, as plain data."""
    here: Any = recipe
    for part in path.split("."):
        here = getattr(here, _ALIASES.get(part, part))
    if isinstance(here, Section):
        return here.model_dump(mode="json", by_alias=True)
    return list(here) if isinstance(here, tuple) else here


def replaced(recipe: Recipe, path: str, value: Any) -> Recipe:
    """The recipe with one value changed; the value must be of the field's type and range."""
    return _replaced(recipe, path.split("."), value)  # type: ignore[return-value]


def _replaced(section: Section, parts: list[str], value: Any) -> Section:
    name = _ALIASES.get(parts[0], parts[0])
    new = value if len(parts) == 1 else _replaced(getattr(section, name), parts[1:], value)
    return section.model_copy(update={name: new})


# --- candidates --------------------------------------------------------------------------------------------------


def multiples(near: int, unit: int) -> Iterator[int]:
    """Multiples of ``unit`` by distance from ``near``, the smaller first; none below ``unit`` or beyond the bound."""
    low = near // unit * unit
    for i in range(_SEARCHED):
        pair = (low - i * unit, low + (i + 1) * unit)
        yield from sorted((m for m in pair if unit <= m <= LARGEST), key=lambda m: abs(m - near))


def divisors(number: int, near: int) -> Iterator[int]:
    """Divisors of ``number`` by distance from ``near``, then 1 and ``number``; far ones are not searched for."""
    near = min(max(near, 1), number)
    close = (d for i in range(_SEARCHED) for d in ((near - i, near + i) if i else (near,)) if 0 < d <= number)
    yield from chain((d for d in close if number % d == 0), (1, number))
