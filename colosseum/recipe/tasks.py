"""The tasks a recipe can train: their fields, and what other rooms need to know of each (``FACTS``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from colosseum.recipe.base import AUTO, Count, Positive, Rate, Section, Token, Whole, read_by
from colosseum.recipe.source import FromPath, FromRun, parse_reference


class CptTask(Section):
    """Continued pretraining on a blend of token streams."""

    kind: Literal["cpt"]


class ChatTokens(Section):
    """Special strings of the chat template (defaults: the case study's)."""

    system_turn_start: Token = "<extra_id_0>"
    turn_start: Token = "<extra_id_1>"
    label_start: Token = "<extra_id_2>"
    end_of_turn: Token = "\n"
    end_of_name: Token = "\n"


ChatTemplate = Annotated[
    Literal["chat_tokens", "tokenizer"],
    Field(description="chat_tokens, or tokenizer: the Hugging Face chat template in the folder of tokenizer.path"),
]


Packing = Annotated[
    bool,
    Field(description="samples of a step share rows of mbs * seq_length tokens, each attending to itself alone"),
]


LoraTarget = Literal["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]


class Lora(Section):
    """Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): they alone are trained, the model is frozen."""

    rank: Annotated[int, Field(ge=1, le=8192)] = 32
    alpha: Positive = Field(32.0, description="the adapters' output is scaled by alpha / rank")
    targets: tuple[LoraTarget, ...] = Field(
        ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"), description="layers that have an adapter"
    )


class SftTask(Section):
    """Supervised fine-tuning; loss on the answer tokens only."""

    kind: Literal["sft"]
    format: Literal["chat", "prompt_response"] = Field("chat", description="JSONL format of the data")
    template: ChatTemplate = "chat_tokens"
    chat_tokens: ChatTokens = ChatTokens()
    packing: Packing = False
    lora: Lora | None = Field(None, description="train low-rank adapters only; null = all weights")
    shuffle: bool = True
    num_workers: Whole = Field(0, description="data loader processes per rank")

    @property
    def rows(self) -> Literal["chat", "prompt_response"]:
        """Kind of the rows in its files."""
        return self.format


class DpoTask(Section):
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290)."""

    kind: Literal["dpo"]
    beta: Positive = Field(0.2, description="strength of the KL penalty to the reference policy")
    loss: Literal["dpo", "ipo", "ipo_by_token", "rpo_bwd_kl", "rpo_fwd_kl", "rpo_sq"] = Field(
        "dpo",
        description="ipo sums over a response's tokens, ipo_by_token averages; rpo_* read rewards of the rows",
    )
    reference: Literal["precomputed", "resident", "host", "auto"] = Field(
        AUTO,
        description="reference policy: log-probs precomputed, a resident copy, or a copy swapped in from host memory; "
        "auto = precomputed, nemo1: host",
    )
    reference_from: Annotated[FromPath | FromRun, read_by(parse_reference)] | None = Field(
        None, description="the reference policy; null = checkpoint.from"
    )
    sft_weight: Rate = Field(0.0, description="weight of an additional SFT loss on the chosen response")
    average_log_probs: bool = Field(False, description="divide log-probs by the response length")
    logprob_mbs: Count | None = Field(None, description="micro-batch (pairs) of the log-prob pass; null = batch.mbs")
    template: ChatTemplate = "chat_tokens"
    chat_tokens: ChatTokens = ChatTokens()
    packing: Packing = False
    lora: Lora | None = Field(None, description="train low-rank adapters only; null = all weights")
    shuffle: bool = True
    num_workers: Whole = 0

    @property
    def rows(self) -> Literal["preference"]:
        """Kind of the rows in its files."""
        return "preference"


AlignmentTask = SftTask | DpoTask
"""Reads rows of text from JSONL files; the other reads token streams."""
PreferenceTask = DpoTask
"""Compares the policy with a reference policy."""
Task = Annotated[CptTask | SftTask | DpoTask, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """One row of the table of tasks."""

    verb: Literal["train", "align"]
    """``colosseum VERB KIND`` launches it."""
    samples: str
    """What ``batch.gbs`` counts."""
    sequences: int
    """Sequences that one sample forwards."""


FACTS: Mapping[str, TaskFacts] = {
    "cpt": TaskFacts(verb="train", samples="sequences", sequences=1),
    "sft": TaskFacts(verb="align", samples="sequences", sequences=1),
    "dpo": TaskFacts(verb="align", samples="pairs", sequences=2),  # of a pair: chosen and rejected
}
TASKS: Mapping[str, type[Section]] = {"cpt": CptTask, "sft": SftTask, "dpo": DpoTask}


def command(kind: str) -> str:
    """The command that launches a task."""
    return f"colosseum {FACTS[kind].verb} {kind}"
