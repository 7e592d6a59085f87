"""All that a report says of one run, read from its folder with bounds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from colosseum.bundle import MANIFEST, RECIPE, read_bundle
from colosseum.errors import RefusedInput
from colosseum.monitor.goodput import Goodput, goodput_of
from colosseum.monitor.predicted import Predicted, read_predicted
from colosseum.monitor.series import Metrics, read_metrics
from colosseum.monitor.watch import Attempt, attempts_of, with_steps
from colosseum.reading import Unreadable, read_bytes, read_object, rows
from colosseum.recipe.compare import Difference, differences
from colosseum.records import MetricsRow, number, text, whole
from colosseum.rundir import RunDir

EVENTS = 100
"""The newest ones that are shown."""


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
    manifest = _manifest(run)
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
        predicted=read_predicted(run),
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


def _manifest(run: RunDir) -> dict[str, Any]:
    try:
        return read_object(run.bundle / MANIFEST)
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
