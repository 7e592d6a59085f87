"""``scripts/bench-planner``: accuracy a source, rankings and speed, as tables for docs/planner.md."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from colosseum.planning.constants import Constants, calibration_for
from colosseum.planning.hardware import usable_bytes
from colosseum.planning.job import Job
from colosseum.planning.layout import enumerate_layouts
from colosseum.planning.resolve import candidates, free_layout
from colosseum.planning.search import Evaluated, evaluate
from colosseum.recipe.load import load
from colosseum.recipe.schema import Recipe
from tests.validation.fit import fitted_rows, leave_one_family_out
from tests.validation.published import (
    Row,
    Score,
    first_step_gib,
    recipe_of,
    rows,
    score_memory,
    score_time,
    shipped,
)

CASE_STUDY = "colosseum-355b/cpt-16k-expand"


def main() -> None:
    """Prints every table."""
    accuracy()
    memory()
    rankings()
    speed()


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _constants(row: Row) -> Constants:
    return shipped(row).constants


def accuracy() -> None:
    """Step time: out of sample by family and release, then in sample, a line a source."""
    base = calibration_for("h100-sxm").constants
    held_out = leave_one_family_out(base)
    say("## Step time\n")
    say("| rows | count | MAPE | bias | worst |\n| --- | ---: | ---: | ---: | --- |")
    some = fitted_rows()
    _line("H100, leave one model family out", score_time(some, lambda r: held_out[r.family]))
    for family in dict.fromkeys(r.family for r in some):
        chosen = tuple(r for r in some if r.family == family)
        _line(f"- left out: {family}", score_time(chosen, lambda r: held_out[r.family]))
    _line("H100, releases never fitted", score_time(_of("held"), _constants))
    _line("H100, fitted rows", score_time(some, _constants))
    _line("H100, 4K to 64K tokens, never fitted", score_time(_of("long"), _constants))
    _line("H100, packed SFT (attention of short answers)", score_time(_of("sft"), _constants))
    for kind in ("fit", "held", "long", "other"):
        for source in sorted({r.source for r in _of(kind)}):
            for hardware in sorted({r.hardware for r in _of(kind) if r.source == source}):
                chosen = tuple(r for r in _of(kind) if (r.source, r.hardware) == (source, hardware))
                _line(f"{source}, {hardware}", score_time(chosen, _constants))


def memory() -> None:
    """Peaks of PyTorch's allocator; nothing of the memory model is fitted to these rows."""
    say("\n## Memory\n")
    say("| rows | count | MAPE | bias | worst |\n| --- | ---: | ---: | ---: | --- |")
    known = tuple(r for r in rows() if r.peak_gib is not None)
    _line("BF16, all sources", score_memory(tuple(r for r in known if r.set != "sft"), _constants))
    for source in sorted({r.source for r in known}):
        _line(source, score_memory(tuple(r for r in known if r.source == source), _constants))
    sft = tuple(r for r in known if r.set == "sft")
    _line("mbridge-mem, the first step's peak", score_memory(sft, _constants, first_step_gib))


def _of(kind: str) -> tuple[Row, ...]:
    return tuple(r for r in rows() if r.set == kind)


def _line(name: str, score: Score) -> None:
    if not score.errors:
        return
    row, error = score.worst
    say(f"| {name} | {len(score.errors)} | {score.mape:.1%} | {score.bias:+.1%} | {error:+.1%} {row.id} |")


def rank(found: Evaluated, published: Recipe) -> tuple[int, float]:
    """Place of a published layout among the splits of its own search, and its distance to the best (0.01 = 1%).

    A split is tp, pp, cp and mbs; of its interleavings and splits of the ends the best fitting one counts.
    """
    par, lay = published.parallelism, found.layouts
    usable = usable_bytes(published.hardware)
    wanted = (par.tp, par.pp, par.cp, published.batch.mbs)
    seen: dict[tuple[float, ...], float] = {}
    for i in found.order(usable):
        if found.device[i] > usable:
            break
        split = tuple(float(c[i]) for c in (lay.tp, lay.pp, lay.cp, lay.mbs))
        seen.setdefault(split, float(found.time_s[i]))
    best = min(seen.values(), default=float("nan"))
    place = list(seen).index(wanted) + 1 if wanted in seen else 0
    return place, seen.get(wanted, float("nan")) / best - 1.0


def layouts() -> tuple[Row, ...]:
    """The first row of each published layout: one search each."""
    told: dict[tuple[object, ...], Row] = {}
    for row in (*_of("fit"), *_of("held")):
        recipe = recipe_of(row)
        par = recipe.parallelism
        key = (row.family, recipe.precision.fp8, par.tp, par.pp, par.cp, recipe.batch.mbs)
        if row.family != "Llama3.1-405B" or recipe.model.num_layers == 126:
            told.setdefault(key, row)
    return tuple(told.values())


def rankings() -> None:
    """Where published layouts stand in their own search."""
    say("\n## Published layouts in their own search\n")
    say("| run | layout | GPUs | place | behind the best |\n| --- | --- | ---: | ---: | ---: |")
    for row in layouts():
        recipe = recipe_of(row)
        par = recipe.parallelism
        found = candidates(free_layout(recipe), shipped(row))
        place, behind = rank(found, recipe)
        shown = f"TP{par.tp} PP{par.pp} CP{par.cp} MBS{recipe.batch.mbs}"
        say(f"| {row.id} {row.family} | {shown} | {recipe.resources.gpus} | {place or 'does not fit'} | {behind:.1%} |")
    recipe = load(CASE_STUDY, cluster="dgx-h100").recipe
    place, behind = rank(candidates(free_layout(recipe), calibration_for("h100-sxm")), recipe)
    say(f"| {CASE_STUDY}, FP32 gradients | TP8 PP10 CP4 MBS1 | 2880 | {place} | {behind:.1%} |")


def speed() -> None:
    """Whole searches, and time and memory against the number of layouts."""
    say("\n## Speed\n")
    recipe = free_layout(load(CASE_STUDY, cluster="dgx-h100").recipe)
    calibration = calibration_for("h100-sxm")
    count = len(candidates(recipe, calibration))
    best = _least(lambda: candidates(recipe, calibration))
    say(f"whole space of {recipe.resources.gpus} GPUs ({count} layouts): {best * 1e3:.1f} ms\n")
    job, some = Job.of(recipe), enumerate_layouts(recipe)
    say("| layouts | seconds | microseconds a layout | peak MB beyond the columns |\n| ---: | ---: | ---: | ---: |")
    for number in (10_000, 100_000, 1_000_000):
        many = some.take(np.resize(np.arange(len(some)), number))
        seconds = _least(lambda many=many: evaluate(job, many, calibration.constants), 1)  # type: ignore[misc]
        tracemalloc.start()
        evaluate(job, many, calibration.constants)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        say(f"| {number:,} | {seconds:.2f} | {seconds / number * 1e6:.2f} | {peak / 1e6:.0f} |")


def _least(call: Callable[[], object], times: int = 5) -> float:
    took = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return min(took)


if __name__ == "__main__":
    main()
