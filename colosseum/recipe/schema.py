"""The Recipe: one frozen, typed description of one training stage. Unknown keys are refused.

Field names follow megatron-core where it has one. Names of other frameworks are in ``engines/`` only.
This file defines types, ranges and defaults; cross-field rules are in ``rules.py``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from colosseum.recipe.base import (
    AUTO,
    DEFAULT_ENGINE,
    BoolOrAuto,
    Count,
    CountOrAuto,
    Duration,
    EngineName,
    Fraction,
    Name,
    Positive,
    Rate,
    Section,
    Text,
    Token,
    Whole,
    read_by,
    tuples,
)
from colosseum.recipe.cluster import Cluster, Hardware
from colosseum.recipe.source import Fresh, Source, parse_source
from colosseum.recipe.tasks import AlignmentTask, Lora, PreferenceTask, Task

# --- what is trained ---------------------------------------------------------------------------------------------


LLAMA3_OLD_CONTEXT = 8192
"""megatron-core's ``RotaryEmbedding._apply_scaling`` knows no other context before scaling."""


def padded_vocab(rows: int, divisible_by: int, tp: Any) -> Any:
    """``rows`` rounded up to a multiple of ``divisible_by * tp`` (Megatron's rule); ``tp``: an int or an array."""
    unit = divisible_by * tp
    return -(-rows // unit) * unit


class Model(Section):
    """A dense GPT; field names are megatron-core's."""

    num_layers: Annotated[int, Field(ge=1, le=10**5)]
    hidden_size: Count
    num_attention_heads: Count
    vocab_size: Count = Field(description="rows of the embedding before padding")
    ffn_hidden_size: Count | None = Field(None, description="null = 4 * hidden_size")
    num_query_groups: Count | None = Field(None, description="KV heads; null = num_attention_heads (MHA)")
    kv_channels: Count | None = Field(None, description="head dimension; null = hidden_size / num_attention_heads")
    activation_func: Literal["squared_relu", "gelu", "silu"] = "squared_relu"
    gated_linear_unit: bool = Field(False, description="SwiGLU / GeGLU: a third matrix in the MLP")
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    layernorm_zero_centered_gamma: bool = Field(True, description="layernorm1p")
    layernorm_epsilon: Positive = 1e-5
    add_bias_linear: bool = False
    add_qkv_bias: bool = Field(False, description="a bias in the QKV projection alone (Qwen2)")
    qk_layernorm: bool = Field(False, description="a norm of each head's queries and keys before RoPE (Qwen3)")
    tied_embeddings: bool = Field(False, description="input and output embedding share one matrix")
    position_embedding_type: Literal["rope", "learned_absolute"] = "rope"
    rotary_percent: Fraction = 0.5
    rope_base: Count = 10000
    rope_scaling: Positive | None = Field(None, description="factor by which RoPE is stretched; null = none")
    rope_scaling_type: Literal["llama3", "linear", "yarn"] = Field(
        "llama3", description="llama3: slow frequencies only; linear: positions divided; yarn: arXiv:2309.00071"
    )
    original_max_position_embeddings: Count | None = Field(
        None, description="context before scaling: needed by yarn, 8192 in llama3 (null), none in linear"
    )
    max_position_embeddings: Count | None = Field(None, description="null = batch.seq_length")
    hidden_dropout: Fraction = 0.0
    attention_dropout: Fraction = 0.0
    init_method_std: Positive = 0.02
    make_vocab_size_divisible_by: Count = 128

    @property
    def ffn(self) -> int:
        """Width of the MLP."""
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def query_groups(self) -> int:
        """KV heads."""
        return self.num_query_groups or self.num_attention_heads

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def is_swiglu(self) -> bool:
        """Whether the activation is SwiGLU: only then megatron-core's fused bias and activation kernel is used."""
        return self.gated_linear_unit and self.activation_func == "silu"

    def padded_vocab(self, tp: int) -> int:
        """Embedding rows after padding."""
        return int(padded_vocab(self.vocab_size, self.make_vocab_size_divisible_by, tp))


class Tokenizer(Section):
    kind: Literal["tokenizer_json", "sentencepiece", "null"] = Field(
        "tokenizer_json", description='"null" (with quotes, bare null is no value in YAML): the data are token ids'
    )
    path: Text | None = Field(None, description="tokenizer.json or SentencePiece .model")
    eod: Token = Field("<|endoftext|>", description="end-of-document token")


class BlendEntry(Section):
    path: Text = Field(description="prefix of a Megatron .bin/.idx pair")
    weight: Positive = Field(description="relative share of samples; the weights need not sum to 1")
    tags: tuple[Text, ...] = ()


class Data(Section):
    blend: tuple[BlendEntry, ...] = Field((), description="cpt: indexed datasets, sampled by weight, divided by split")
    train: Text | None = Field(None, description="sft, dpo: JSONL file")
    validation: Text | None = Field(None, description="sft, dpo: JSONL file")
    train_samples: Count | None = Field(None, description="rows of the training file; to plan before it exists")
    cache_dir: Text | None = Field(None, description="folder of index caches; null = in the run folder")
    split: Text = Field("99,1,0", description="train, validation, test shares of a blend")
    eod_mask_loss: bool = False
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    record_samples: bool = Field(False, description="write sample ids to the ledger")


class Batch(Section):
    gbs: Count = Field(description="global batch size: sequences (cpt, sft) or pairs (dpo) per step")
    mbs: CountOrAuto = Field(1, description="micro-batch size: sequences or pairs")
    seq_length: Count


# --- how it is spread and computed -------------------------------------------------------------------------------


class Parallelism(Section):
    """dp is derived: gpus / (tp * pp * cp)."""

    tp: CountOrAuto = 1
    pp: CountOrAuto = 1
    vpp: CountOrAuto = Field(1, description="model chunks per pipeline rank (virtual pipeline); 1 = not interleaved")
    cp: CountOrAuto = 1
    sequence_parallel: BoolOrAuto = Field(AUTO, description="auto = tp > 1")
    first_stage_layers: Count | None = None
    last_stage_layers: Count | None = None
    account_for_embedding_in_pipeline_split: BoolOrAuto = False
    account_for_loss_in_pipeline_split: BoolOrAuto = False
    microbatch_group_size_per_vp_stage: Count | None = Field(None, description="null = pp")


class Recompute(Section):
    granularity: Literal["none", "selective", "full", "auto"] = "none"
    method: Literal["uniform", "block"] | None = None
    num_layers: Count | None = None
    modules: tuple[Literal["core_attn", "layernorm", "mlp"], ...] = ("core_attn",)


class Bf16Layers(Section):
    """Layers kept in BF16 at both ends of an FP8 model."""

    first: Whole = 0
    last: Whole = 0


class Precision(Section):
    dtype: Literal["bf16", "fp32"] = "bf16"
    fp8: Literal["none", "delayed", "tensorwise", "blockwise"] = Field("none", description="scaling recipe")
    fp8_format: Literal["hybrid", "e4m3"] = "hybrid"
    fp8_params: BoolOrAuto = Field(False, description="store and gather weights in FP8; auto = with FP8")
    fp8_wgrad: bool = Field(True, description="weight gradients in FP8")
    fp8_margin: Whole = 0
    fp8_interval: Count = 1
    fp8_amax_history_len: Count = 1024
    fp8_amax_compute_algo: Literal["max", "most_recent"] = "max"
    bf16_layers: Bf16Layers = Bf16Layers()
    grad_reduce_dtype: Literal["bf16", "fp32", "auto"] = Field(AUTO, description="main gradients; auto = planner")
    moments_dtype: Literal["fp32", "bf16"] = Field("fp32", description="dtype of Adam's m and v")


class Optimizer(Section):
    name: Literal["adam"] = "adam"
    lr: Rate = 1e-5
    min_lr: Rate = 0.0
    lr_schedule: Literal["cosine", "linear", "constant", "wsd"] = Field(
        "cosine", description="wsd: warm-up, stable at lr, then a decay of wsd_decay_steps"
    )
    warmup_steps: Whole = 0
    warmup_fraction: Fraction | None = Field(None, description="warm-up as a share of the decay, not in warmup_steps")
    decay_steps: Count | None = Field(None, description="step at which lr has reached min_lr; null = the last")
    wsd_decay_steps: Count | None = Field(None, description="wsd: steps that the decay at the end takes")
    wsd_decay: Literal["exponential", "linear", "cosine", "minus_sqrt"] = Field(
        "exponential", description="wsd: shape of the decay"
    )
    weight_decay: Rate = 0.1
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: Positive = 1e-8
    clip_grad: Rate = Field(1.0, description="gradient-norm clipping; 0 = off")
    distributed: BoolOrAuto = Field(AUTO, description="shard optimizer states over dp * cp; auto = when dp * cp > 1")


class Train(Section):
    """Length (exactly one of steps, tokens, epochs), validation, logging, seed."""

    steps: Count | None = None
    tokens: Count | None = None
    epochs: Count | None = Field(None, description="passes over the training file (sft, dpo)")
    val_every_steps: Count = 100
    val_steps: Whole = 10
    log_every_steps: Count = 1
    seed: Whole = 1234
    deterministic: bool = False


class Overlap(Section):
    tp_comm: BoolOrAuto = Field(AUTO, description="TP collectives overlap GEMMs (userbuffers); auto = tp > 1 with SP")
    tp_comm_cfg: Text | None = Field(None, description="userbuffers configuration file; null = the engine's default")
    p2p: BoolOrAuto = Field(AUTO, description="overlap pipeline sends; auto = vpp > 1")
    batch_p2p: BoolOrAuto = Field(AUTO, description="batch pipeline sends; auto = not p2p")
    grad_reduce: BoolOrAuto = Field(AUTO, description="auto = dp * cp > 1")
    param_gather: BoolOrAuto = Field(AUTO, description="auto = with the distributed optimizer and grad_reduce")
    defer_embedding_wgrad_compute: bool = False
    wgrad_deferral_limit: Whole = Field(0, description="micro-batches whose embedding wgrad is deferred; 0 = all")


class Fusion(Section):
    cross_entropy: bool = False
    rope: bool = False
    gradient_accumulation: bool = True
    optimizer_step: bool = Field(
        True, description="mcore: clip, Adam and BF16 weights in one GPU pass; no effect on FP8 weights, BF16 moments"
    )


class Checkpoint(Section):
    model_config = ConfigDict(**{**Section.model_config, "validate_by_name": True, "validate_by_alias": True})

    format: Literal["torch_dist"] = "torch_dist"
    every_steps: Count = 100
    keep_last: Count | None = Field(None, description="null = keep all")
    keep_every: Count | None = Field(None, description="with keep_last, also keep each step divisible by this")
    async_save: bool = Field(False, alias="async", description="write in the background during training")
    source: Annotated[Source, read_by(parse_source)] = Field(
        Fresh(), alias="from", description="the first weights: none = random; a campaign sets stage:NAME"
    )
    load: tuple[Literal["weights", "optimizer", "data", "rng"], ...] = ("weights", "optimizer", "data", "rng")


class Stability(Section):
    mode: Literal["off", "watch", "act"] = Field(
        "act", description='NaN, inf and spikes of loss or gradient norm: ignore, report, act ("off" needs quotes)'
    )
    max_skips: Whole = Field(3, description="batches skipped within 100 steps, the first thing that act does")
    max_rewinds: Whole = Field(2, description="returns to the newest checkpoint, the second thing that act does")
    rewind_lr_factor: Fraction = Field(0.5, description="learning rate after a rewind, times this")
    rewind_lr_steps: Count = Field(200, description="for so many steps after the one that failed")
    scan_every_steps: Count | None = Field(
        None, description="mcore: count what FP8 loses of each layer at such steps, of one micro-batch; null = never"
    )
    hang_timeout: Duration = Field("15m", description="a step or save that takes longer is a hang: the attempt ends")


class Resources(Section):
    gpus: int = Field(ge=1, le=10**7, description="total number of GPUs = ranks (on a CPU: processes)")
    gpus_per_node: Count = 8
    time_limit: Duration = "4h"
    vboost: bool = Field(False, description="nvidia-smi boost-slider --vboost 1 before training")


class Recipe(Section):
    """Everything one stage needs; see docs/contracts.md."""

    name: Name
    engine: EngineName = DEFAULT_ENGINE
    task: Task
    model: Model
    tokenizer: Tokenizer = Tokenizer()
    data: Data = Data()
    batch: Batch
    parallelism: Parallelism = Parallelism()
    recompute: Recompute = Recompute()
    precision: Precision = Precision()
    optimizer: Optimizer = Optimizer()
    train: Train
    overlap: Overlap = Overlap()
    fusion: Fusion = Fusion()
    checkpoint: Checkpoint = Checkpoint()
    stability: Stability = Stability()
    resources: Resources
    hardware: Hardware
    cluster: Cluster

    @property
    def lora(self) -> Lora | None:
        """The task's adapters; None where all weights are trained."""
        return None if self.alignment is None else self.alignment.lora

    @property
    def alignment(self) -> AlignmentTask | None:
        """The task if it trains on rows of text; None where it trains on token streams."""
        return self.task if isinstance(self.task, AlignmentTask) else None

    @property
    def preference(self) -> PreferenceTask | None:
        """The task if it has a reference policy."""
        return self.task if isinstance(self.task, PreferenceTask) else None

    def as_data(self) -> dict[str, Any]:
        """Plain JSON-able data under the names a YAML file uses."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_data(cls, data: Any) -> Recipe:
        """Validate plain data (lists become tuples).

        Raises:
            pydantic.ValidationError: with every type and range fault at once.
        """
        return cls.model_validate(tuples(data))

    def starting_from(self, source: Source) -> Recipe:
        """The recipe with another ``checkpoint.from``."""
        return self.model_copy(update={"checkpoint": self.checkpoint.model_copy(update={"source": source})})
