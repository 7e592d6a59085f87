"""Preference losses against their formulas with figures worked out by hand, and the sign of a collapse."""

from __future__ import annotations

import math

import pytest
import torch

from colosseum.runtime.tasks.preference import WINDOW, CollapseWatch, losses


def test_dpo_and_ipo_of_known_margins() -> None:
    delta = torch.tensor([0.0, 2.0, -1.0])
    dpo = [math.log(2), math.log(1 + math.exp(-1.0)), math.log(1 + math.exp(0.5))]  # beta 0.5
    assert losses("dpo", delta, 0.5).tolist() == pytest.approx(dpo)
    assert losses("ipo", delta, 0.5).tolist() == pytest.approx([1.0, 1.0, 4.0]), "(delta - 1 / (2 beta))^2"
    assert losses("ipo_by_token", delta, 0.5).tolist() == losses("ipo", delta, 0.5).tolist()


def step(chosen: float, rejected: float) -> dict[str, float]:
    return {"reward_chosen": chosen, "reward_rejected": rejected, "margin": chosen - rejected}


def test_a_collapse_is_told_once_while_the_margin_still_grows() -> None:
    watch = CollapseWatch()
    told = [watch.update(step(-0.01 * i, -0.03 * i)) for i in range(4 * WINDOW)]
    assert [event.kind for event in told if event] == ["preference_collapse"]
    assert told.index(next(event for event in told if event)) == 2 * WINDOW - 1


def test_a_chosen_side_that_gains_is_no_collapse() -> None:
    watch = CollapseWatch()
    assert not any(watch.update(step(0.01 * i, -0.03 * i)) for i in range(4 * WINDOW))
