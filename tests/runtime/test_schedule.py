"""Learning rates of every schedule by step: right values from the formulas and from arithmetic, not from our code."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from colosseum.runtime.optimizer import schedule
from tests.runtime import tiny


def rates(steps: int, at: list[int], **optimizer: Any) -> list[float]:
    """The rate at some steps of a run."""
    data = {"distributed": False, "warmup_steps": 0, **optimizer}
    recipe = tiny.recipe(Path("/data"), train={"steps": steps}, optimizer=data)
    torch_optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=recipe.optimizer.lr)
    for group in torch_optimizer.param_groups:
        group |= {"max_lr": recipe.optimizer.lr, "min_lr": recipe.optimizer.min_lr}
    made, found, before = schedule(recipe, torch_optimizer, steps), [], 0
    for step in at:
        made.step((step - before) * recipe.batch.gbs)
        before = step
        found.append(float(torch_optimizer.param_groups[0]["lr"]))
    return found


def test_a_cosine_that_ends_before_the_run() -> None:
    """Warm-up 0.01 of 3200 steps, half of the way down at (32 + 3200) / 2, the lowest rate from 3200 on."""
    rate = {"lr": 1.5e-4, "min_lr": 1e-5, "lr_schedule": "cosine", "decay_steps": 3200, "warmup_fraction": 0.01}
    assert rates(5000, [16, 32, 1616, 3200, 4000, 5000], **rate) == pytest.approx(
        [7.5e-5, 1.5e-4, 8.0e-5, 1e-5, 1e-5, 1e-5], rel=1e-6
    )


def test_nemos_constant_steps() -> None:
    """max_steps 6000, constant_steps 1000: rates of NeMo's CosineAnnealing."""
    rate = {"lr": 6e-4, "min_lr": 6e-5, "lr_schedule": "cosine", "decay_steps": 5000, "warmup_steps": 60}
    found = rates(6000, [3000, 4500, 5000, 6000], **rate)
    assert found == pytest.approx([2.505e-4, 7.353e-5, 6e-5, 6e-5], rel=1e-3)


@pytest.mark.parametrize(
    ("shape", "half"),
    [
        ("linear", 0.5),
        ("cosine", 0.5),
        ("exponential", 2 * 0.5**0.5 - 1),
        ("minus_sqrt", 1 - math.sqrt(0.5)),
    ],
)
def test_warm_up_stable_decay(shape: str, half: float) -> None:
    """arXiv:2404.06395: the rate stays until the last 200 of 1000 steps; ``half``: what is left in their middle."""
    rate = {"lr": 1e-3, "min_lr": 1e-4, "lr_schedule": "wsd", "wsd_decay_steps": 200, "wsd_decay": shape}
    found = rates(1000, [50, 100, 500, 800, 900, 1000], warmup_steps=100, **rate)
    assert found == pytest.approx([5e-4, 1e-3, 1e-3, 1e-3, 1e-4 + half * 9e-4, 1e-4], rel=1e-6)


def test_a_decay_longer_than_the_run() -> None:
    rate = {"lr": 1e-3, "min_lr": 0.0, "lr_schedule": "linear", "decay_steps": 2000}
    assert rates(1000, [500, 1000], **rate) == pytest.approx([7.5e-4, 5e-4])
