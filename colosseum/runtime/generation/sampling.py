"""The next token from logits. Legend: B rows, V vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen."""

    temperature: float = 0.0
    """0 = greedy: the likeliest token."""
    top_p: float = 1.0
    """The fewest likeliest tokens whose probabilities reach this (Holtzman et al. 2020, arXiv:1904.09751)."""
    max_tokens: int = 256
    seed: int = 1234


def draws_of(seed: int, number: int) -> np.random.Generator:
    """The random numbers of one prompt: by its number alone, so that no batch and no layout changes its answer."""
    return np.random.Generator(np.random.Philox(key=[seed, number]))


def choose(logits_BV: torch.Tensor, sampling: Sampling, draws_B: torch.Tensor) -> torch.Tensor:
    """The next token of each row, ``[B]``.

    Args:
        draws_B: uniform in [0, 1), float64; not looked at if greedy.
    """
    if sampling.temperature == 0:
        return logits_BV.argmax(-1)
    probs_BV = torch.softmax(logits_BV.double() / sampling.temperature, -1)
    if sampling.top_p < 1:
        sorted_BV = probs_BV.sort(dim=-1, descending=True).values
        kept_BV = sorted_BV.cumsum(-1) - sorted_BV < sampling.top_p
        kept_BV[:, 0] = True  # however small top_p is
        least_B1 = sorted_BV.gather(-1, kept_BV.sum(-1, keepdim=True) - 1)
        probs_BV = probs_BV.masked_fill(probs_BV < least_B1, 0.0)
    # By id, not by probability: the order of two tokens that are nearly as likely would depend on rounding.
    upto_BV = probs_BV.cumsum(-1)
    place_B1 = torch.searchsorted(upto_BV, draws_B[:, None] * upto_BV[:, -1:], right=True)
    return place_B1[:, 0]
