"""colosseum.json: the description of a checkpoint, readable without torch and without pickle."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from colosseum.recipe.schema import Model, Recipe
from colosseum.recipe.tasks import Lora

CHECKPOINT_SCHEMA: Literal["colosseum.checkpoint/2"] = "colosseum.checkpoint/2"
"""Files of version /1 record fewer facts of the model."""


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Layout(Part):
    """The layout of the run that wrote it."""

    tp: int
    pp: int
    vpp: int
    cp: int
    dp: int


class ModelShape(Part):
    """The model of a checkpoint: everything that changes what its weights compute.

    Fields after ``seq_length`` are None (unknown) in checkpoints written before they were recorded.
    """

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    vocab_size: int
    tied_embeddings: bool
    seq_length: int
    kv_channels: int | None = None
    activation_func: str | None = None
    gated_linear_unit: bool | None = None
    normalization: str | None = None
    layernorm_zero_centered_gamma: bool | None = None
    layernorm_epsilon: float | None = None
    add_bias_linear: bool | None = None
    add_qkv_bias: bool | None = None
    qk_layernorm: bool | None = None
    position_embedding_type: str | None = None
    rotary_percent: float | None = None
    rope_base: int | None = None
    rope_scaling: float | None = None
    """None also for a model that has none; ``rope_base`` shows whether it was recorded."""
    rope_scaling_type: str | None = None
    """None also without scaling."""
    original_max_position_embeddings: int | None = None
    """As ``rope_scaling``."""
    positions: int | None = None
    """Rows of the learned position embedding; None with RoPE."""

    @classmethod
    def of(cls, recipe: Recipe) -> ModelShape:
        """The shape that a checkpoint must match to be loaded into the recipe's model."""
        return cls.of_model(recipe.model, recipe.batch.seq_length)

    @classmethod
    def of_model(cls, model: Model, seq_length: int) -> ModelShape:
        """The shape of a model trained with a sequence length."""
        learned = model.position_embedding_type == "learned_absolute"
        return cls(
            num_layers=model.num_layers,
            hidden_size=model.hidden_size,
            ffn_hidden_size=model.ffn,
            num_attention_heads=model.num_attention_heads,
            num_query_groups=model.query_groups,
            vocab_size=model.vocab_size,
            tied_embeddings=model.tied_embeddings,
            seq_length=seq_length,
            kv_channels=model.head_dim,
            activation_func=model.activation_func,
            gated_linear_unit=model.gated_linear_unit,
            normalization=model.normalization,
            layernorm_zero_centered_gamma=model.layernorm_zero_centered_gamma,
            layernorm_epsilon=model.layernorm_epsilon,
            add_bias_linear=model.add_bias_linear,
            add_qkv_bias=model.add_qkv_bias,
            qk_layernorm=model.qk_layernorm,
            position_embedding_type=model.position_embedding_type,
            rotary_percent=None if learned else model.rotary_percent,
            rope_base=None if learned else model.rope_base,
            rope_scaling=None if learned else model.rope_scaling,
            rope_scaling_type=None if learned or model.rope_scaling is None else model.rope_scaling_type,
            original_max_position_embeddings=None if learned else model.original_max_position_embeddings,
            positions=(model.max_position_embeddings or seq_length) if learned else None,
        )

    def differences(self, wanted: ModelShape) -> list[str]:
        """Differences that make a checkpoint of this shape one of another model."""
        changes = self._changes(wanted, may=False)
        return [f"{name} {before} (the recipe says {after})" for name, before, after in changes]

    def changes(self, wanted: ModelShape) -> list[str]:
        """Differences that are allowed: the weights adapt to them in training."""
        return [f"{name} {before} → {after}" for name, before, after in self._changes(wanted, may=True)]

    def _changes(self, wanted: ModelShape, *, may: bool) -> list[tuple[str, object, object]]:
        found = []
        for name in ModelShape.model_fields:
            before, after = getattr(self, name), getattr(wanted, name)
            recorded = before is not None or (self.rope_base is not None and self._is_none(name))
            if recorded and before != after and (name in MAY_CHANGE) == may:
                found.append((name, before, after))
        return found

    def _is_none(self, name: str) -> bool:
        """Whether None is a value of the field, recorded by who records ``rope_base``."""
        return name == "rope_scaling" or (name in SCALING and self.rope_scaling is None)


SCALING = ("rope_scaling_type", "original_max_position_embeddings")
MAY_CHANGE = ("seq_length", "rope_base", "rope_scaling", *SCALING)
"""Training on longer sequences changes the base on purpose."""


class FileSum(Part):
    """One file of the folder."""

    bytes: int
    xxh3: str
    """XXH3-64 of its content: fast enough for terabytes; not a cryptographic hash."""


class LossHistory(Part):
    """Of the last steps: what the next ones are compared with to find spikes."""

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    skipped: tuple[int, ...]
    """Steps whose batches changed no weights."""


class Origin(Part):
    """Origin of a checkpoint that a command made from another one."""

    command: Literal["expand", "average"]
    source: str
    """RUN@STEP, or a folder name."""
    source_hash: str
    """sha256 of the source's colosseum.json, which holds a checksum of every file."""
    settings: dict[str, JsonValue]


class CheckpointMetadata(Part):
    """The document of docs/contracts.md; a folder without a valid one is unfinished."""

    schema_: Literal["colosseum.checkpoint/1", "colosseum.checkpoint/2"] = Field(CHECKPOINT_SCHEMA, alias="schema")
    step: int
    consumed_samples: int
    """Position in the sample order."""
    consumed_tokens: int
    """Including earlier stages."""
    layout: Layout
    model: ModelShape
    dtype: str
    fp8: str
    sharded_optimizer: bool
    """Whether the distributed optimizer wrote its states; a run without it converts them, and the other way round."""
    tokens_by_source: dict[str, int]
    sample_order: str
    """Hash of the sample order in which ``consumed_samples`` is a position."""
    recipe_hash: str
    run_id: str
    versions: dict[str, str]
    save_time_s: float
    files: dict[str, FileSum]
    history: LossHistory | None = None
    """None = an older release, or a command wrote it."""
    lora: Lora | None = None
    """LoRA adapters stored beside the weights; None = none."""
    has_optimizer: bool = True
    """False = weights only."""
    origin: Origin | None = None
    """None = training wrote it."""

    @classmethod
    def of_weights(
        cls,
        model: ModelShape,
        dtype: str,
        *,
        run_id: str,
        packages: Sequence[str],
        save_time_s: float,
        consumed_tokens: int = 0,
        origin: Origin | None = None,
    ) -> CheckpointMetadata:
        """Weights alone, unsharded, that a command wrote: nothing of a run's state, no files yet.

        Args:
            packages: those whose versions matter to what was written.
        """
        return cls(
            schema=CHECKPOINT_SCHEMA,
            step=0,
            consumed_samples=0,
            consumed_tokens=consumed_tokens,
            layout=Layout(tp=1, pp=1, vpp=1, cp=1, dp=1),
            model=model,
            dtype=dtype,
            fp8="none",
            sharded_optimizer=False,
            has_optimizer=False,
            tokens_by_source={},
            sample_order="",
            recipe_hash="",
            run_id=run_id,
            versions={name: version(name) for name in packages},
            save_time_s=round(save_time_s, 3),
            files={},
            origin=origin,
        )
