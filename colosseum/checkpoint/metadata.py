"""colosseum.json: what a checkpoint holds, readable without torch and without pickle."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from colosseum.recipe.schema import Recipe

CHECKPOINT_SCHEMA: Literal["colosseum.checkpoint/1"] = "colosseum.checkpoint/1"


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Layout(Part):
    """The layout that wrote it."""

    tp: int
    pp: int
    vpp: int
    cp: int
    dp: int


class ModelShape(Part):
    """Which model it is a state of."""

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    vocab_size: int
    tied_embeddings: bool
    seq_length: int

    @classmethod
    def of(cls, recipe: Recipe) -> ModelShape:
        """What a checkpoint must agree with to be loaded into the recipe's model."""
        model = recipe.model
        return cls(
            num_layers=model.num_layers,
            hidden_size=model.hidden_size,
            ffn_hidden_size=model.ffn,
            num_attention_heads=model.num_attention_heads,
            num_query_groups=model.query_groups,
            vocab_size=model.vocab_size,
            tied_embeddings=model.tied_embeddings,
            seq_length=recipe.batch.seq_length,
        )

    def differences(self, wanted: ModelShape) -> list[str]:
        """Why a checkpoint of this shape is of another model; a sequence length may change."""
        return [
            f"{name} {getattr(self, name)} (the recipe says {getattr(wanted, name)})"
            for name in ModelShape.model_fields
            if name != "seq_length" and getattr(self, name) != getattr(wanted, name)
        ]


class FileSum(Part):
    """One file of the folder."""

    bytes: int
    xxh3: str
    """XXH3-64 of its content: terabytes are summed while they are written, so no cryptographic hash."""


class CheckpointMetadata(Part):
    """The document of docs/contracts.md; a folder without a valid one is unfinished."""

    schema_: Literal["colosseum.checkpoint/1"] = Field(CHECKPOINT_SCHEMA, alias="schema")
    step: int
    consumed_samples: int
    """Position in the sample order."""
    consumed_tokens: int
    """Over the whole lineage."""
    layout: Layout
    model: ModelShape
    dtype: str
    fp8: str
    sharded_optimizer: bool
    """Whether the distributed optimizer wrote its states: the two kinds cannot read each other's."""
    tokens_by_source: dict[str, int]
    sample_order: str
    """Identity of the order that ``consumed_samples`` is a position in."""
    recipe_hash: str
    run_id: str
    versions: dict[str, str]
    save_time_s: float
    files: dict[str, FileSum]
