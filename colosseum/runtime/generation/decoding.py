"""Token by token with a cache of keys and values: one batch of prompts to its end.

Prompts of a batch may differ in length. The first forward pass reads as many tokens as the shortest has; from there
each step reads one token of every row, from its prompt while there is one, else the one that was chosen. So no row
has padding, and each token is computed at its own position.
Legend: B rows, S sequence, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.inference.contexts import StaticInferenceContext

from colosseum.recipe.schema import Recipe
from colosseum.runtime import device, parallel
from colosseum.runtime.generation.sampling import Sampling, choose, draws_of
from colosseum.runtime.model import DTYPES, unwrapped


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What every rank must know of it."""

    prompts: Sequence[Sequence[int]]
    numbers: Sequence[int]
    """Of the prompts, which their random numbers depend on."""
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A loaded model and the number of tokens that may be chosen."""

    recipe: Recipe
    model: Any
    """This rank's only chunk, in evaluation mode."""
    vocab_size: int

    def run(self, batch: Batch, ends: Callable[[list[int]], bool] | None) -> list[list[int]]:
        """The tokens that follow each prompt; every rank calls it, with the same batch.

        Args:
            ends: on rank 0: whether an answer of these tokens is at its end.
        """
        lengths = [len(prompt) for prompt in batch.prompts]
        limits = [self._limit(length, batch.sampling) for length in lengths]
        context = StaticInferenceContext(len(lengths), max(limits))
        draws = [draws_of(batch.sampling.seed, number) for number in batch.numbers]
        rows = [list(prompt) for prompt in batch.prompts]
        open_rows = set(range(len(rows)))
        read = 0
        upto = min(lengths)
        while open_rows:
            tokens_BS = torch.tensor([self._next(row, read, upto) for row in rows], device=device.current())
            logits_BV = self.logits(tokens_BS, context)
            read, upto = upto, upto + 1
            choosing = [r for r in sorted(open_rows) if len(rows[r]) == read]
            if not choosing:
                continue
            chosen = self._choose(logits_BV, batch.sampling, [draws[r].random() for r in choosing], choosing)
            for r, token in zip(choosing, chosen, strict=True):
                rows[r].append(token)
            over = [len(rows[r]) == limits[r] for r in choosing]
            if ends is not None:
                over = [ends(rows[r][lengths[r] :]) or full for r, full in zip(choosing, over, strict=True)]
            open_rows -= {r for r, ended in zip(choosing, self._agreed(over), strict=True) if ended}
        return [row[length:] for row, length in zip(rows, lengths, strict=True)]

    def _limit(self, length: int, sampling: Sampling) -> int:
        """Tokens of prompt and answer."""
        return min(length + sampling.max_tokens, self.recipe.batch.seq_length)

    def _next(self, row: list[int], read: int, upto: int) -> list[int]:
        """Tokens ``read`` to ``upto - 1``; a row that has ended gives its last one, which nobody looks at."""
        return row[read:upto] or [row[-1]]

    def logits(self, tokens_BS: torch.Tensor, context: StaticInferenceContext | None) -> torch.Tensor | None:
        """Logits after the last token, ``[B, V]``, on the last stage's ranks; None on the others.

        Args:
            context: holds keys and values of the tokens before, and is moved on; None = these tokens are all.
        """
        output_BSV = self.forward(tokens_BS, context)
        # Rows that only fill the vocabulary up are cut off: they cannot be chosen.
        return None if output_BSV is None else output_BSV[:, -1, : self.vocab_size]

    def forward(self, tokens_BS: torch.Tensor, context: StaticInferenceContext | None) -> torch.Tensor | None:
        """Logits after each token, ``[B, S, V]`` with the padding rows of the vocabulary; see ``logits``."""
        rows, length = tokens_BS.shape
        start = 0 if context is None else context.sequence_len_offset
        positions_BS = torch.arange(start, start + length, device=tokens_BS.device).repeat(rows, 1)
        if not parallel.is_first_stage():
            shape = (length, rows, self.recipe.model.hidden_size)
            hidden_SBH = torch.empty(shape, dtype=DTYPES[self.recipe.precision.dtype], device=device.current())
            dist.recv(hidden_SBH, parallel_state.get_pipeline_model_parallel_prev_rank())
            unwrapped(self.model).set_input_tensor(hidden_SBH)
        with torch.no_grad():
            output: torch.Tensor = self.model(
                tokens_BS, positions_BS, None, inference_context=context, runtime_gather_output=True
            )
        if context is not None:
            context.sequence_len_offset += length
        if not parallel.is_last_stage():
            dist.send(output.contiguous(), parallel_state.get_pipeline_model_parallel_next_rank())
            return None
        return output

    def _choose(
        self, logits_BV: torch.Tensor | None, sampling: Sampling, draws: list[float], rows: list[int]
    ) -> list[int]:
        """One rank chooses: tensor-parallel ranks might round apart."""
        chosen = torch.zeros(len(rows), dtype=torch.int64, device=device.current())
        if logits_BV is not None:
            draws_B = torch.tensor(draws, dtype=torch.float64, device=device.current())
            chosen = choose(logits_BV[rows].float(), sampling, draws_B)
        if dist.get_world_size() > 1:
            dist.broadcast(chosen, dist.get_world_size() - 1)  # of the last stage
        return [int(token) for token in chosen.tolist()]

    def _agreed(self, over: list[bool]) -> list[bool]:
        """What rank 0 says, on all."""
        if dist.get_world_size() == 1:
            return over
        flags = torch.tensor(over, dtype=torch.int64, device=device.current())
        dist.broadcast(flags, 0)
        return [bool(flag) for flag in flags.tolist()]
