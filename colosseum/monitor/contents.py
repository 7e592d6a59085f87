"""All that a report says of one run, read from its folder with bounds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from colosseum.bundle import MANIFEST, PLAN, RECIPE, read_bundle
from colosseum.errors import RefusedInput
from colosseum.monitor.goodput import Goodput, goodput_of
from colosseum.monitor.series import Metrics, read_metrics
from colosseum.monitor.watch import Attempt, attempts_of, with_steps
from colosseum.reading import Unreadable, read_bytes, read_object, rows
from colosseum.recipe.compare import Difference, differences
from colosseum.records import MetricsRow, number, text, whole
from colosseum.rundir import RunDir

EVENTS = 100
"""The newest ones that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the plan predicts; None = it does not say."""

    step_time_s: float | None
    step_time_range_s: tuple[float, float] | None
    mfu: float | None
    goodput: float | None
    usable_bytes: float | None
    stage_bytes: tuple[float, ...]
    """Peak of each pipeline stage as the run measures it: without context and NCCL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """One run."""

    run: RunDir
    metrics: Metrics
    goodput: Goodput
    attempts: tuple[Attempt, ...]
    predicted: Predicted
    total_steps: int | None
    recipe_text: str
    manifest: dict[str, Any]
    parent: str
    """``RUN@STEP`` that the run was started from; empty = none."""
    changes: tuple[Difference, ...]
    """Of the recipe, to the parent's."""
    changes_unknown: str
    """Why they are not known."""
    tokens_by_source: dict[str, float]
    events: tuple[MetricsRow, ...]


def read_contents(run: RunDir) -> Contents:
    """Reads everything but the checkpoints; what is missing or damaged is empty."""
    metrics = read_metrics(run.metrics)
    manifest = _object(run, MANIFEST)
    lineage = manifest.get("lineage")
    parent = lineage if isinstance(lineage, dict) else {}
    changes, unknown = _changes(run, text(parent.get("run"), 200)) if parent else ((), "")
    events, ledger = _last(run)
    total = number(manifest.get("total_steps"))
    return Contents(
        run=run,
        metrics=metrics,
        goodput=goodput_of(run, metrics),
        attempts=tuple(_attempts(run, metrics)),
        predicted=_predicted(_object(run, PLAN)),
        total_steps=None if total is None else int(total),
        recipe_text=_text(run),
        manifest=manifest,
        parent=f"{text(parent.get('run'), 200)}@{number(parent.get('step')) or 0:.0f}" if parent else "",
        changes=changes,
        changes_unknown=unknown,
        tokens_by_source=ledger,
        events=events,
    )


def _attempts(run: RunDir, metrics: Metrics) -> list[Attempt]:
    numbers, steps = metrics.train["attempt"], metrics.train["step"]
    reached = {int(n): int(steps[numbers == n].max()) for n in np.unique(numbers)}
    loaded = {whole(row.get("attempt")) or 0: int(row["step"]) for row in metrics.of_kind("load")}
    return with_steps(attempts_of(run), reached, loaded)


def _object(run: RunDir, name: str) -> dict[str, Any]:
    try:
        return read_object(run.bundle / name)
    except (FileNotFoundError, Unreadable):
        return {}


def _text(run: RunDir) -> str:
    try:
        return read_bytes(run.bundle / RECIPE).decode(errors="replace")
    except (FileNotFoundError, Unreadable) as error:
        return f"{RECIPE} cannot be read: {error}"


def _changes(run: RunDir, parent: str) -> tuple[tuple[Difference, ...], str]:
    """What differs from the recipe of the parent, which lies beside the run."""
    if not parent or "/" in parent:
        return (), "the parent is not a run beside this one"
    try:
        first = read_bundle(run.root.parent / parent / "bundle").recipe
        return tuple(differences(first, read_bundle(run.bundle).recipe)), ""
    except RefusedInput as refused:
        return (), str(refused)


def _predicted(plan: dict[str, Any]) -> Predicted:
    def of(section: str, name: str) -> Any:
        found = plan.get(section)
        return found.get(name) if isinstance(found, dict) else None

    reach = plan.get("step_time_range_s")
    ends = [number(end) for end in reach] if isinstance(reach, list) and len(reach) == 2 else []
    stages = of("memory", "stages")
    kept = [stage for stage in stages[:4096] if isinstance(stage, dict)] if isinstance(stages, list) else []
    totals = [(number(s.get("total_bytes")) or 0.0) - (number(s.get("context_bytes")) or 0.0) for s in kept]
    low, high = (ends[0], ends[1]) if len(ends) == 2 else (None, None)
    return Predicted(
        step_time_s=number(plan.get("step_time_s")),
        step_time_range_s=None if low is None or high is None else (low, high),
        mfu=number(of("mfu", "causal")),
        goodput=number(of("storage", "goodput")),
        usable_bytes=number(of("memory", "usable_bytes")),
        stage_bytes=tuple(totals),
    )


def _last(run: RunDir) -> tuple[tuple[MetricsRow, ...], dict[str, float]]:
    """The newest events, and the tokens by source of the ledger's last line."""
    events: deque[MetricsRow] = deque(maxlen=EVENTS)
    tokens: dict[str, float] = {}
    try:
        for row in rows(run.events):
            if (event := MetricsRow.from_data(row)) is not None:
                events.append(event)
        for row in rows(run.ledger):
            found = row.get("tokens_by_source")
            if isinstance(found, dict):
                tokens = {text(name, 200): number(count) or 0.0 for name, count in list(found.items())[:1000]}
    except Unreadable:
        pass
    return tuple(events), tokens
