"""What a production run takes, next to an acceptance run: published factors for data, stragglers, saves and restarts.

The step model is calibrated on acceptance runs: minutes long, synthetic data, healthy nodes, nothing saved. A run of
weeks is slower. ``tests/validation/production.csv`` has the published runs that the range was drawn around.
"""

from __future__ import annotations

from dataclasses import dataclass

from colosseum.planning.plan import Convention, Production
from colosseum.recipe.schema import Recipe


@dataclass(frozen=True, slots=True)
class Factor:
    """How much longer something takes than in an acceptance run: the usual, the least, the most."""

    usual: float
    least: float
    most: float


PACE = Factor(1.15, 1.0, 1.6)
"""A step of a run on several nodes: data, stragglers, the network under load.

Stragglers alone cost 10% of the GPU hours of a large cluster (arXiv:2505.05713: 1 / 0.9 = 1.12). Published runs took
1.02 to 1.57 times the acceptance step of this model: Nemotron-4 340B 1.09, Megatron-LM's 175B on 3,072 to 12,288 A100
1.02 to 1.10 (arXiv:2402.15627), Llama 3 405B 1.18 to 1.23 (arXiv:2407.21783), BLOOM 1.20 (arXiv:2211.05100), the
355B case study 1.21, 1.38 and, in FP8, 1.57.
"""
ONE_NODE = Factor(1.0, 0.93, 1.10)
"""No other node to wait for: the acceptance run's own range."""
RESTARTS = Factor(1.05, 1.0, 1.11)
"""Saves, failures and the steps that are trained again.

Llama 3 405B trained for more than 90% of 54 days with 466 interruptions (arXiv:2407.21783, section 3.3.4); MegaScale
reports more than 90% too (arXiv:2402.15627): 1 / 0.9 = 1.11 at most.
"""


def production(
    recipe: Recipe, step_s: float, mfu: Convention, *, site_factor: float, goodput: float | None, steps: int | None
) -> Production:
    """Step time, days and cost of a production run.

    Args:
        step_s: seconds of an acceptance step, or of the site's own where it was calibrated.
        site_factor: above or below 1 where ``calibrate --from RUN`` measured a run of the site: then it is the pace.
        goodput: share of the time that trains new steps, where the cluster's failure rate and storage are known.
    """
    resources = recipe.resources
    several = resources.gpus > resources.gpus_per_node
    pace = PACE if several and site_factor == 1.0 else ONE_NODE
    restarts = RESTARTS if several else Factor(1.0, 1.0, 1.0)
    if goodput:
        restarts = Factor(1 / goodput, 1 / goodput, 1 / goodput)
    seconds = [step_s * factor for factor in (pace.usual, pace.least, pace.most)]
    found = {
        "step_time_s": seconds[0],
        "step_time_range_s": (seconds[1], seconds[2]),
        "mfu": Convention(causal=mfu.causal / pace.usual, full=mfu.full / pace.usual),
        "restart_factor": restarts.usual,
        "restarts_measured": goodput is not None,
    }
    if steps is None:
        return Production.model_validate(found)
    bounds = zip(seconds, (restarts.usual, restarts.least, restarts.most), strict=True)
    usual, least, most = (steps * step * restart / 86400.0 for step, restart in bounds)
    hours, price = usual * 24.0 * resources.gpus, recipe.cluster.price_per_gpu_hour
    cost = None if price is None else hours * price
    return Production.model_validate(
        {**found, "days": usual, "days_range": (least, most), "gpu_hours": hours, "cost": cost}
    )
