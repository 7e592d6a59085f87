"""The scan of a run while it trains: one micro-batch of every ``stability.scan_every_steps``-th step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from megatron.core import parallel_state

from colosseum.recipe.schema import Recipe
from colosseum.runtime.fp8.casting import Numbers, merged
from colosseum.runtime.fp8.observing import observed
from colosseum.runtime.fp8.report import HYBRID, document, propose, rows_of
from colosseum.runtime.metrics import MetricsWriter
from colosseum.runtime.state import Training

Seen = dict[str, Numbers]


@contextmanager
def observed_if_due(training: Training, step: int) -> Iterator[Seen | None]:
    """What is seen of ``step`` while it is open; None where no scan is due."""
    every = training.recipe.stability.scan_every_steps
    if every is None or step % every:
        yield None
        return
    with observed(training.model, once=True) as seen:
        yield seen


def report(recipe: Recipe, seen: Seen, step: int, writer: MetricsWriter | None) -> None:
    """Writes RUN/fp8/step-N.json and an event; every rank calls it, those of the first replica send what they saw."""
    if parallel_state.get_data_parallel_rank(with_context_parallel=True) != 0:
        return
    group = parallel_state.get_model_parallel_group()
    parts: list[Seen] | None = [{}] * dist.get_world_size(group) if dist.get_rank() == 0 else None
    dist.gather_object(seen, parts, dst=0, group=group)
    if writer is None or parts is None:
        return
    rows = rows_of(merged(parts))
    scaling = "delayed" if recipe.precision.fp8 == "none" else recipe.precision.fp8
    proposal = propose(rows, scaling, recipe.model.num_layers)
    writer.fp8_scan(step, json.dumps(document(rows, proposal, step=step)) + "\n")
    worst = {kind: max(row.underflow[row.format]["tensorwise"] for row in rows if row.kind == kind) for kind in HYBRID}
    writer.event("fp8_scan", step, underflow=worst, layers=list(proposal.layers), overrides=list(proposal.overrides))
