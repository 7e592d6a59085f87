"""Direct preference optimisation: pairs against a reference policy's log-probabilities."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state

from colosseum.data.align.cache import AlignedData
from colosseum.recipe.schema import Recipe
from colosseum.recipe.tasks import DpoTask
from colosseum.runtime.stability.ladder import Event
from colosseum.runtime.tasks import reference
from colosseum.runtime.tasks.aligned import AlignedSamples, open_data, order_identity, rewards_of, samples_of
from colosseum.runtime.tasks.base import Batch, Part, Samples, Setup, Sums
from colosseum.runtime.tasks.preference import CollapseWatch, losses

REWARD = "reward"
"""In a batch: the reward that the file gives to each chosen answer minus that of the rejected one."""


class Dpo:
    """See ``tasks.base.Task``. The loss is the mean over pairs; both sides of a pair are in one forward pass."""

    names = (
        *("accuracy", "margin", "reward_chosen", "reward_rejected", "logp_chosen", "logp_rejected"),
        *("kl_sum", "kl_tokens"),
    )

    def __init__(self, recipe: Recipe, cache: Path) -> None:
        assert isinstance(recipe.task, DpoTask)
        self._recipe, self._cache, self._task = recipe, cache, recipe.task
        self._figures: dict[Part, dict[str, Any]] = {}
        self._rewards: dict[Part, dict[str, Any]] = {}
        self._copy: reference.Copy | reference.BaseModel | None = None
        self._watch = CollapseWatch()

    @cached_property
    def _data(self) -> dict[Part, AlignedData]:
        parts: tuple[Part, ...] = ("train", "valid") if self._recipe.train.val_steps else ("train",)
        return {part: open_data(self._recipe, part, self._cache) for part in parts}

    def prepare(self, setup: Setup) -> None:
        """The rewards of every pair where the loss compares with them, and the reference's log-probabilities
        (precomputed) or its weights beside the policy's."""
        if self._task.loss.startswith("rpo_"):
            self._rewards = {part: {REWARD: rewards_of(self._recipe, d, part)} for part, d in self._data.items()}
        self._prepare_reference(setup)

    def _prepare_reference(self, setup: Setup) -> None:
        if self._task.reference != "precomputed" and self._task.lora is not None:
            self._copy = reference.BaseModel()
            self._figures = {part: reference.empty(len(data)) for part, data in self._data.items()}
            return
        if self._task.reference != "precomputed":
            setup.load_start(self._task.reference_from)
            self._copy = reference.Copy(setup.model, self._task.reference)
            self._figures = {part: reference.empty(len(data)) for part, data in self._data.items()}
            return
        weights = setup.identity_of(self._task.reference_from)
        precision = self._recipe.precision
        loaded = False
        for part, data in self._data.items():

            def make(part: Part = part, data: AlignedData = data) -> dict[str, reference.Figures]:
                nonlocal loaded
                if not loaded:
                    setup.load_start(self._task.reference_from)
                    loaded = True
                whole = samples_of(self._recipe, data, "valid", len(data), {})
                return reference.compute(self._recipe, setup.model, whole)

            key = [weights, data.folder.name, precision.dtype, precision.fp8]
            self._figures[part] = reference.stored(setup.references, key, make)

    def samples(self, part: Part, size: int) -> AlignedSamples:
        per_sample = self._figures[part] | self._rewards.get(part, {})
        return samples_of(self._recipe, self._data[part], part, size, per_sample)

    def sample_order(self) -> str:
        return order_identity(self._recipe, self._data["train"])

    def before_batches(self, model: list[Any], samples: Samples, first: int) -> None:
        if self._copy is not None:
            assert isinstance(samples, AlignedSamples)
            reference.fill(self._recipe, model, samples, first, self._copy, samples.per_sample)

    def sums(self, losses_BS: torch.Tensor, batch: Batch) -> Sums:
        logp_B, count_B = reference.response_log_probs(losses_BS, batch)
        pairs_here = len(batch["number"])
        logp, count = logp_B.view(2, pairs_here), count_B.view(2, pairs_here)
        ref = torch.stack([batch[name] for name in reference.SIDES]).float()
        kl_sum = (logp.detach() - ref).sum()
        kl_tokens = count.sum()
        if self._task.average_log_probs or self._task.loss == "ipo_by_token":
            logp, ref = logp / count, ref / count
        gain = logp - ref
        beta = self._task.beta
        reward_P = batch[REWARD].float() if REWARD in batch else None
        loss = losses(self._task.loss, gain[0] - gain[1], beta, reward_P).sum()
        if self._task.sft_weight:
            loss = loss - self._task.sft_weight * logp[0].sum()
        reward, seen = beta * gain.detach(), logp.detach()
        margin = reward[0] - reward[1]
        more = {
            "accuracy": ((margin > 0).float() + 0.5 * (margin == 0).float()).sum(),
            "margin": margin.sum(),
            "reward_chosen": reward[0].sum(),
            "reward_rejected": reward[1].sum(),
            "logp_chosen": seen[0].sum(),
            "logp_rejected": seen[1].sum(),
            "kl_sum": kl_sum,
            "kl_tokens": kl_tokens,
        }
        pairs = torch.tensor(logp.size(1), device=logp.device)
        if parallel_state.get_context_parallel_rank() > 0:
            # Every context-parallel rank has the whole pair's loss, and the gradient of its own part: one counts it.
            loss, pairs = loss - loss.detach(), torch.zeros_like(pairs)
            more = {name: torch.zeros_like(value) for name, value in more.items()}
        return Sums(loss=loss, count=pairs, more=more)

    def metrics(self, totals: dict[str, float]) -> dict[str, float]:
        pairs = max(1.0, totals["count"])
        means = {name: totals[name] / pairs for name in self.names if not name.startswith("kl_")}
        return {**means, "kl": totals["kl_sum"] / max(1.0, totals["kl_tokens"])}

    def notice(self, metrics: dict[str, float]) -> Event | None:
        return self._watch.update(metrics)
