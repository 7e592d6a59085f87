"""Log-probabilities of given tokens: one batch of texts, one forward pass.

Texts of a batch may differ in length: shorter ones are padded on the right, where a causal model does not look.
Legend: B rows, S sequence, T scored tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from colosseum.runtime import device
from colosseum.runtime.generation.decoding import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Token ids, of which those from ``start`` on (at least 1) are scored; the last one is not read by the model."""

    ids: Sequence[int]
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Of one text."""

    log_probs: tuple[float, ...]
    """Natural logarithms, one a scored token."""
    greedy: bool
    """Whether each scored token is the most likely one."""


def score(decoder: Decoder, texts: Sequence[Text]) -> list[Score]:
    """Scores of texts; every rank calls it, with the same texts, and gets the same scores."""
    longest = max(len(text.ids) for text in texts) - 1
    tokens_BS = torch.tensor([[*text.ids[:-1], *[0] * (longest - len(text.ids) + 1)] for text in texts])
    logits_BSV = decoder.forward(tokens_BS.to(device.current()), None)
    counts = [len(text.ids) - text.start for text in texts]
    found = torch.zeros(2, sum(counts), dtype=torch.float64, device=device.current())
    if logits_BSV is not None:
        parts = [_of_row(logits_BSV[row], text, decoder) for row, text in enumerate(texts)]
        found = torch.cat(parts, dim=1)
    if dist.get_world_size() > 1:
        dist.broadcast(found, dist.get_world_size() - 1)  # of the last stage
    return [
        Score(log_probs=tuple(part[0].tolist()), greedy=bool(part[1].all()))
        for part in found.cpu().split(counts, dim=1)
    ]


def _of_row(logits_SV: torch.Tensor, text: Text, decoder: Decoder) -> torch.Tensor:
    """``[2, T]``: log-probability of each scored token, and 1 where it is the most likely one."""
    targets_T = torch.tensor(text.ids[text.start :], device=logits_SV.device)
    # Without the rows that pad the vocabulary; FP32 as the exported model computes it.
    logits_TV = logits_SV[text.start - 1 : len(text.ids) - 1, : decoder.recipe.model.vocab_size].float()
    log_probs_T = torch.log_softmax(logits_TV, -1).gather(-1, targets_T[:, None])[:, 0]
    return torch.stack([log_probs_T.double(), (logits_TV.argmax(-1) == targets_T).double()])
