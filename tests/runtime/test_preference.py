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


def test_reward_aware_losses_of_known_margins() -> None:
    """At equal margins nothing is lost; else the divergence of two coins, worked out by hand."""
    delta, reward = torch.tensor([2.0, 0.0, -4.0]), torch.tensor([1.0, math.log(3.0), 0.0])  # beta 0.5
    assert losses("rpo_sq", delta, 0.5, reward).tolist() == pytest.approx([0.0, math.log(3.0) ** 2, 4.0])
    # Odds of 3 to 1 are 0.75; a margin of 0 is 0.5.
    backward = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    forward = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert losses("rpo_bwd_kl", delta, 0.5, reward)[:2].tolist() == pytest.approx([0.0, backward], abs=1e-6)
    assert losses("rpo_fwd_kl", delta, 0.5, reward)[:2].tolist() == pytest.approx([0.0, forward], abs=1e-6)
    far = torch.tensor([300.0, -300.0])
    for kind in ("rpo_bwd_kl", "rpo_fwd_kl"):
        assert losses(kind, far, 1.0, torch.zeros(2)).isfinite().all()
        again = delta.clone().requires_grad_()
        losses(kind, again, 0.5, 0.5 * delta).sum().backward()
        assert again.grad.abs().max() < 1e-6, "the minimum is where both margins are equal"  # type: ignore[union-attr]


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
