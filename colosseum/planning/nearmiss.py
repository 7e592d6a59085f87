"""For a recipe that is illegal, does not fit or leaves nodes idle: the nearest changes that help, fastest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np

from colosseum.errors import RefusedInput
from colosseum.planning.constants import Calibration
from colosseum.planning.hardware import usable_bytes
from colosseum.planning.job import Job, as_columns
from colosseum.planning.layout import enumerate_layouts
from colosseum.planning.plan import Layout
from colosseum.planning.search import evaluate, search
from colosseum.recipe import derived, rules
from colosseum.recipe.base import AUTO
from colosseum.recipe.rules_base import divisors, multiples, replaced
from colosseum.recipe.schema import Recipe
from colosseum.units import format_bytes, format_count, format_duration

DAY_S = 86400.0
SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMiss:
    """A legal recipe that differs little from a refused one."""

    changes: tuple[tuple[str, Any], ...]
    recipe: Recipe
    fits: bool
    step_time_s: float
    missing_bytes: float

    @property
    def tokens_per_day(self) -> float:
        return derived.tokens_per_step(self.recipe) / self.step_time_s * DAY_S

    def sentence(self) -> str:
        """``resources.gpus=2880: 35.1 s per step, 50.9B tokens per day``."""
        what = " ".join(f"{path}={value}" for path, value in self.changes)
        pace = f"{format_duration(self.step_time_s)} per step, {format_count(self.tokens_per_day)} tokens per day"
        return f"{what}: {pace}" + ("" if self.fits else f", does not fit by {format_bytes(self.missing_bytes)}")


class NearMisses(RefusedInput):
    """A refusal with the legal recipes nearest to what was asked for."""

    def __init__(self, refused: RefusedInput, misses: Sequence[NearMiss]) -> None:
        super().__init__(refused.faults, subject=refused.subject)
        self.misses = tuple(misses)

    def as_json(self) -> dict[str, Any]:
        near = [
            {
                "overrides": [f"{path}={value}" for path, value in miss.changes],
                "fits": miss.fits,
                "step_time_s": miss.step_time_s,
                "tokens_per_day": miss.tokens_per_day,
            }
            for miss in self.misses
        ]
        return {**super().as_json(), "near": near}


def near_misses(recipe: Recipe, calibration: Calibration) -> list[NearMiss]:
    """Legal recipes one field (or one field and the batch size) away from a refused one, most tokens per day first.

    Empty if the recipe itself is legal: then the refused value is not in the recipe.
    """
    if not rules.faults(recipe) and _evaluated(recipe, (), calibration):
        return []
    found: dict[tuple[tuple[str, Any], ...], NearMiss] = {}
    for path, value in _single_changes(recipe):
        changed = replaced(recipe, path, value)
        changes: tuple[tuple[str, Any], ...] = ((path, value),)
        broken = rules.faults(changed)
        if broken and all(f.path == "batch.gbs" for f in broken) and path != "batch.gbs" and broken[0].nearest:
            gbs = broken[0].nearest[0]
            changed, changes = replaced(changed, "batch.gbs", gbs), (*changes, ("batch.gbs", gbs))
            broken = rules.faults(changed)
        if not broken and (miss := _evaluated(changed, changes, calibration)):
            found.setdefault(changes, miss)
    return sorted(found.values(), key=lambda w: (not w.fits, -w.tokens_per_day))[:SHOWN]


def _single_changes(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Values of the layout's fields near the given ones."""
    par, res = recipe.parallelism, recipe.resources
    replica = 1
    for size in (par.tp, par.pp, par.cp):
        replica *= 1 if size == AUTO else size
    unit = replica if res.gpus <= res.gpus_per_node else lcm(replica, res.gpus_per_node)
    yield from (("resources.gpus", n) for n, _ in zip(multiples(res.gpus, unit), range(4), strict=False))
    share = max(1, res.gpus // replica)
    yield from (("batch.gbs", n) for n, _ in zip(multiples(recipe.batch.gbs, share), range(4), strict=False))
    layers = recipe.model.num_layers
    for name, whole in (("pp", layers), ("vpp", layers), ("cp", recipe.batch.seq_length), ("tp", 64)):
        value = getattr(par, name)
        if value != AUTO:
            near = (d for d in divisors(whole, value) if d != value and d <= 64)
            yield from ((f"parallelism.{name}", d) for d, _ in zip(near, range(5), strict=False))


def _evaluated(recipe: Recipe, changes: tuple[tuple[str, Any], ...], calibration: Calibration) -> NearMiss | None:
    free = recipe.recompute.granularity == AUTO
    found = search(Job.of(recipe), enumerate_layouts(recipe), calibration.constants, recompute_free=free)
    if not len(found):
        return None
    usable = usable_bytes(recipe.hardware)
    best = int(found.order(usable)[0])
    missing = float(found.device[best]) - usable
    return NearMiss(
        changes=changes,
        recipe=recipe,
        fits=missing <= 0,
        step_time_s=float(found.time_s[best]),
        missing_bytes=missing,
    )


def fitting(recipe: Recipe, layout: Layout, calibration: Calibration) -> tuple[str, ...]:
    """How to make a job fit: the smallest job with this layout, and settings that need less memory."""
    usable, job = usable_bytes(recipe.hardware), Job.of(recipe)
    now = evaluate(job, as_columns(recipe.model.num_layers, [layout]), calibration.constants)
    said = [f"the fullest rank does not fit by {format_bytes(float(now.device[0]) - usable)}"]
    said += _cheaper(recipe, layout, calibration, usable)
    smallest = smallest_job(recipe, layout, calibration)
    if smallest is not None:
        nodes = -(-smallest // recipe.resources.gpus_per_node)
        said.append(f"the smallest job of this layout that fits has {smallest:,} GPUs ({nodes:,} nodes)")
    else:
        said.append("no number of GPUs makes this layout fit: split the model further")
    return tuple(said)


def _cheaper(recipe: Recipe, layout: Layout, calibration: Calibration, usable: float) -> Iterator[str]:
    """Settings that make the same layout fit."""
    tries = (
        ("precision.grad_reduce_dtype=bf16", {"grad_reduce_dtype": "bf16"}),
        (
            "recompute.granularity=full recompute.method=uniform recompute.num_layers=1",
            {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        ),
    )
    job, layers = Job.of(recipe), recipe.model.num_layers
    both: dict[str, Any] = {}
    words: list[str] = []
    base = evaluate(job, as_columns(layers, [layout]), calibration.constants)
    for word, change in tries:
        if all(getattr(layout, k) == v for k, v in change.items()):
            continue
        both |= change
        words.append(word)
        for option, said in ((change, word), (both, " ".join(words))):
            found = evaluate(job, as_columns(layers, [layout.model_copy(update=option)]), calibration.constants)
            if found.device[0] <= usable:
                slower = float(found.time_s[0] / base.time_s[0]) - 1.0
                yield f"{said} makes it fit, {slower:+.1%} step time"
                return


def smallest_job(recipe: Recipe, layout: Layout, calibration: Calibration, most_dp: int = 4096) -> int | None:
    """GPUs of the smallest job with this layout that fits, growing dp over divisors of the samples a microbatch row."""
    per_step = max(1, recipe.batch.gbs // layout.mbs)
    gpn, replica = recipe.resources.gpus_per_node, layout.tp * layout.pp * layout.cp
    options = [d for d in range(1, min(per_step, most_dp) + 1) if per_step % d == 0]
    options = [d for d in options if d * replica <= gpn or d * replica % gpn == 0]
    if not options:
        return None
    layouts = [
        layout.model_copy(
            update={
                "dp": d,
                "microbatches": per_step // d,
                "distributed_optimizer": layout.distributed_optimizer or d > 1,
            }
        )
        for d in options
        if layout.vpp == 1 or (per_step // d) % layout.pp == 0
    ]
    if not layouts:
        return None
    found = evaluate(Job.of(recipe), as_columns(recipe.model.num_layers, layouts), calibration.constants)
    fits = np.flatnonzero(found.device <= usable_bytes(recipe.hardware))
    return None if not len(fits) else layouts[int(fits[0])].dp * replica


def idle_nodes(recipe: Recipe) -> str:
    """How many of the recipe's nodes its own layout and batch leave idle; empty where none or nothing is fixed."""
    par, gpn = recipe.parallelism, recipe.resources.gpus_per_node
    if AUTO in (par.tp, par.pp, par.cp) or recipe.batch.mbs == AUTO:
        return ""
    replica, nodes = int(par.tp) * int(par.pp) * int(par.cp), recipe.resources.gpus // gpn
    rows = recipe.batch.gbs // int(recipe.batch.mbs)

    def used(n: int) -> bool:
        return n * gpn % replica == 0 and rows % (n * gpn // replica) == 0

    counts = [n for n in range(nodes, 0, -1) if used(n)][:3]
    if not counts or counts[0] == nodes:
        return ""
    named = ", ".join(f"{n:,}" for n in counts)
    return (
        f"With this layout and batch a job uses {named} of {nodes:,} nodes: at best {nodes - counts[0]:,} of them idle."
    )
