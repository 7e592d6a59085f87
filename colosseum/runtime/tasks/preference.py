"""Preference losses of pairs from log-probabilities of whole responses. Pure tensor arithmetic.

Legend: P pairs. ``delta_P``: (log pi - log ref) of chosen minus that of rejected.
Sources: DPO, Rafailov et al. 2023 (arXiv:2305.18290); IPO, Azar et al. 2023 (arXiv:2310.12036); RPO, Nemotron-4 340B
Technical Report 2024 (arXiv:2406.11704), section 3.3.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from colosseum.runtime.stability.ladder import Event

WINDOW = 10
"""Steps that are averaged before and after."""


def losses(kind: str, delta_P: Tensor, beta: float, reward_P: Tensor | None = None) -> Tensor:
    """The preference loss of each pair.

    Args:
        kind: ``task.loss``; of ``ipo_by_token``, ``delta_P`` is of means over tokens.
        reward_P: of ``rpo_*``: the reward that the file gives to chosen minus that to rejected.
    """
    if reward_P is not None:
        return _reward_aware(kind, beta * delta_P, reward_P)
    if kind == "dpo":
        return -F.logsigmoid(beta * delta_P)
    if kind in ("ipo", "ipo_by_token"):
        return (delta_P - 1 / (2 * beta)) ** 2
    raise AssertionError(kind)


def _reward_aware(kind: str, margin_P: Tensor, reward_P: Tensor) -> Tensor:
    """How far the policy's margin is from that of the file's rewards: squared, or as the divergence of the two
    probabilities that chosen is preferred."""
    if kind == "rpo_sq":
        return (margin_P - reward_P) ** 2
    if kind == "rpo_bwd_kl":
        return _divergence(reward_P, margin_P)
    if kind == "rpo_fwd_kl":
        return _divergence(margin_P, reward_P)
    raise AssertionError(kind)


def _divergence(p_P: Tensor, q_P: Tensor) -> Tensor:
    """KL(p || q) of two coins, given their log-odds."""
    sides = ((F.logsigmoid(sign * p_P), F.logsigmoid(sign * q_P)) for sign in (1, -1))
    return torch.stack([p.exp() * (p - q) for p, q in sides]).sum(0)


class CollapseWatch:
    """Looks for both sides' rewards falling while the margin grows, the chosen one below the reference already.

    Rewards, not log-probabilities: they are relative to the reference, so that other pairs in a step do not move them.
    """

    def __init__(self) -> None:
        self._window: deque[dict[str, float]] = deque(maxlen=2 * WINDOW)
        self._reported = False

    def update(self, metrics: dict[str, float]) -> Event | None:
        """The event, once."""
        self._window.append(metrics)
        if self._reported or len(self._window) < 2 * WINDOW:
            return None
        steps = list(self._window)

        def means(key: str) -> tuple[float, float]:
            return fmean(m[key] for m in steps[:WINDOW]), fmean(m[key] for m in steps[WINDOW:])

        (chosen, chosen_now), (rejected, rejected_now) = means("reward_chosen"), means("reward_rejected")
        margin, margin_now = means("margin")
        if not (chosen_now < chosen and chosen_now < 0 and rejected_now < rejected and margin_now > margin):
            return None
        self._reported = True
        fields = {"reward_chosen": chosen_now, "reward_rejected": rejected_now, "margin": margin_now}
        reason = "log-probabilities of chosen and rejected responses both decrease while the margin grows"
        return Event(kind="preference_collapse", fields={**fields, "reason": reason})
