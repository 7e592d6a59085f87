"""Checkpoints against failures, and how a job grows: storage, cadence, goodput, weak and strong scaling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from colosseum.errors import RefusedInput
from colosseum.planning.flops import Shape
from colosseum.planning.plan import Plan, Storage
from colosseum.recipe import derived
from colosseum.recipe.schema import Recipe

SCALING_SCHEMA = "colosseum.scaling/1"
RESTART_S = 600.0
"""Assumed: a failure is noticed, the job requeued, libraries imported; the load comes on top."""
ASYNC_SHARE = 0.1
"""Assumed: of an asynchronous save, training waits only for the copy to host memory."""


def checkpoint_bytes(recipe: Recipe) -> float:
    """A whole checkpoint: weights, FP32 master weights, m and v.

    Megatron's torch_dist format with the distributed optimizer writes 2 + 12 bytes a parameter; 355e9 parameters are
    5.0 TB, the case study's figure. In FP32 the distributed optimizer still writes its own copy of the weights
    (``DistributedOptimizer``: fp32_param beside exp_avg and exp_avg_sq): 4 + 12.
    """
    precision = recipe.precision
    moments = 2.0 if precision.moments_dtype == "bf16" else 4.0
    weights = 2.0 if precision.dtype == "bf16" else 4.0
    return Shape.of(recipe.model, recipe.batch.seq_length).params * (weights + 4.0 + 2.0 * moments)


def optimal_interval_s(save_s: float, mtbf_s: float) -> float:
    """Compute time between checkpoints that loses least: Daly 2006 (FGCS 22:303), equation 37; Young 1974 is its root.

    sqrt(2 d M) [1 + sqrt(d / 2M) / 3 + d / 18M] - d for d < 2M, else M.
    """
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def goodput(interval_s: float, save_s: float, restart_s: float, mtbf_s: float) -> float:
    """Share of wall time in useful steps: Daly 2006, equation 20, for exponentially distributed failures.

    T_s / T_w = interval / (M exp(R/M) (exp((interval + save) / M) - 1)).
    """
    exponent = (interval_s + save_s) / mtbf_s
    if exponent > 500:
        return 0.0
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(exponent))


def storage(recipe: Recipe, step_time_s: float | None) -> Storage:
    """Disk, save and load time, cadence and goodput of a recipe on its cluster."""
    checkpoint, place = recipe.checkpoint, recipe.cluster.storage
    size = checkpoint_bytes(recipe)
    steps = derived.total_steps(recipe)
    written = None if steps is None else steps // checkpoint.every_steps
    kept = _kept(recipe, steps)
    save = None if place.write_bytes_per_s is None else size / place.write_bytes_per_s
    load = None if place.read_bytes_per_s is None else size / place.read_bytes_per_s
    advised, share = None, None
    mtbf_h = recipe.cluster.node_mtbf_hours
    if save is not None and mtbf_h is not None and step_time_s:
        nodes = math.ceil(recipe.resources.gpus / recipe.resources.gpus_per_node)
        mtbf = mtbf_h * 3600.0 / nodes
        waits = save * (ASYNC_SHARE if checkpoint.async_save else 1.0)
        # An asynchronous save still has to end before the next begins.
        interval = max(optimal_interval_s(waits, mtbf), save)
        advised = max(1, round(interval / step_time_s))
        share = goodput(checkpoint.every_steps * step_time_s, waits, RESTART_S + (load or save), mtbf)
    return Storage(
        checkpoint_bytes=size,
        kept=kept,
        disk_bytes=size * (kept if kept is not None else (written or 1)),
        free_bytes=place.quota_bytes,
        save_time_s=save,
        load_time_s=load,
        advised_every_steps=advised,
        goodput=share,
    )


def _kept(recipe: Recipe, steps: int | None) -> int | None:
    """Most checkpoints on disk at once: the last ones, those kept for good, and the one being written."""
    checkpoint = recipe.checkpoint
    if checkpoint.keep_last is None:
        return None if steps is None else max(1, steps // checkpoint.every_steps)
    forever = 0 if checkpoint.keep_every is None or steps is None else steps // checkpoint.keep_every
    return checkpoint.keep_last + forever + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """One row of the scaling table."""

    gpus: int
    gbs: int
    kind: str
    """``strong``: the recipe's batch; ``weak``: the batch grows with the GPUs."""
    plan: Plan | None
    reason: str = ""


def scaling_table(recipe: Recipe, counts: Sequence[int], solve: Callable[[Recipe], Plan]) -> list[ScalePoint]:
    """Strong and weak scaling of a recipe over GPU counts.

    Args:
        solve: plans one recipe.
    """
    points = []
    base = recipe.resources.gpus
    for gpus in counts:
        batches = {recipe.batch.gbs: "strong"}
        grown, rest = divmod(recipe.batch.gbs * gpus, base)
        if not rest and grown:
            batches.setdefault(grown, "weak")
        for gbs, kind in batches.items():
            changed = recipe.model_copy(
                update={
                    "resources": recipe.resources.model_copy(update={"gpus": gpus}),
                    "batch": recipe.batch.model_copy(update={"gbs": gbs}),
                }
            )
            try:
                points.append(ScalePoint(gpus=gpus, gbs=gbs, kind=kind, plan=solve(changed)))
            except RefusedInput as refused:
                points.append(ScalePoint(gpus=gpus, gbs=gbs, kind=kind, plan=None, reason=refused.faults[0].sentence()))
    return points


def as_json(points: Sequence[ScalePoint]) -> dict[str, Any]:
    """The document of ``plan --gpus N,M``."""
    rows = [
        {
            "gpus": point.gpus,
            "gbs": point.gbs,
            "kind": point.kind,
            "plan": None if point.plan is None else point.plan.as_json(),
            "reason": point.reason or None,
        }
        for point in points
    ]
    return {"schema": SCALING_SCHEMA, "points": rows}
