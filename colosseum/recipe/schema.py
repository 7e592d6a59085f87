"""The Recipe: one frozen, typed description of one training stage. Unknown keys are refused.

Field names follow megatron-core where it has one. Names of other frameworks are in ``engines/`` only.
This file defines types, ranges and defaults; cross-field rules are in ``rules.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetPydanticSchema, StringConstraints
from pydantic_core import core_schema

from colosseum.recipe.source import Fresh, FromPath, FromRun, Source, parse_reference, parse_source
from colosseum.units import parse_duration_s

Auto = Literal["auto"]
AUTO: Auto = "auto"


def _duration(text: str) -> str:
    parse_duration_s(text)
    return text


def _one_line(text: str) -> str:
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise ValueError("must be one line of text without control characters")
    return text


Count = Annotated[int, Field(ge=1, le=10**15)]
Whole = Annotated[int, Field(ge=0, le=10**15)]
CountOrAuto = Count | Auto
BoolOrAuto = bool | Auto
Rate = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, ge=1e-30, le=1e30, allow_inf_nan=False)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_one_line)]
Token = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Duration = Annotated[str, StringConstraints(max_length=32), AfterValidator(_duration)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


GpuRequest = Annotated[str, StringConstraints(pattern=r"^(none|(gres|gpus-per-node)(:[A-Za-z0-9_.-]{1,64})?)$")]
"""How a job requests GPUs: ``gres:h100`` is ``--gres=gpu:h100:8``; likewise ``gpus-per-node:h100``."""


def _read_by(parse: Callable[[str], Source]) -> GetPydanticSchema:
    """A type that a recipe writes as text: ``parse`` reads it, ``str`` writes it."""
    return GetPydanticSchema(
        lambda _, handler: core_schema.no_info_after_validator_function(
            parse, handler(Text), serialization=core_schema.to_string_ser_schema(when_used="always")
        )
    )


class Section(BaseModel):
    """A frozen part of a recipe. Strict types: ``"8"`` is not a number, ``true`` not an integer, ``no`` not text."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


# --- what is trained ---------------------------------------------------------------------------------------------


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


class DpoTask(Section):
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290)."""

    kind: Literal["dpo"]
    beta: Positive = Field(0.2, description="strength of the KL penalty to the reference policy")
    loss: Literal["dpo", "ipo", "ipo_by_token", "rpo_bwd_kl", "rpo_fwd_kl", "rpo_sq"] = Field(
        "dpo", description="ipo sums over the tokens of a response, ipo_by_token averages"
    )
    reference: Literal["precomputed", "resident", "host"] = Field(
        "host",
        description="reference policy: log-probs precomputed, a resident copy, or a copy swapped in from host memory",
    )
    reference_from: Annotated[FromPath | FromRun, _read_by(parse_reference)] | None = Field(
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


Task = Annotated[CptTask | SftTask | DpoTask, Field(discriminator="kind")]


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
    tied_embeddings: bool = Field(False, description="input and output embedding share one matrix")
    position_embedding_type: Literal["rope", "learned_absolute"] = "rope"
    rotary_percent: Fraction = 0.5
    rope_base: Count = 10000
    rope_scaling: Positive | None = Field(None, description="Llama-3 style RoPE scaling factor; null = none")
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
    lr_schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: Whole = 0
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


class Checkpoint(Section):
    model_config = ConfigDict(**{**Section.model_config, "validate_by_name": True, "validate_by_alias": True})

    format: Literal["torch_dist"] = "torch_dist"
    every_steps: Count = 100
    keep_last: Count | None = Field(None, description="null = keep all")
    keep_every: Count | None = Field(None, description="with keep_last, also keep each step divisible by this")
    async_save: bool = Field(False, alias="async", description="write in the background during training")
    source: Annotated[Source, _read_by(parse_source)] = Field(
        Fresh(), alias="from", description="the first weights: none = random; a campaign sets stage:NAME"
    )
    load: tuple[Literal["weights", "optimizer", "data", "rng"], ...] = ("weights", "optimizer", "data", "rng")


class Stability(Section):
    mode: Literal["off", "watch", "act"] = Field(
        "act", description='NaN or inf in the loss: ignore, report, or stop the run ("off" needs quotes in YAML)'
    )
    hang_timeout: Duration = Field("15m", description="a step or save that takes longer is a hang: the attempt ends")


class Resources(Section):
    gpus: int = Field(ge=1, le=10**7, description="total number of GPUs = ranks (on a CPU: processes)")
    gpus_per_node: Count = 8
    time_limit: Duration = "4h"
    vboost: bool = Field(False, description="nvidia-smi boost-slider --vboost 1 before training")


# --- where it runs -----------------------------------------------------------------------------------------------


class PeakFlops(Section):
    """Dense peak FLOP/s of one device."""

    bf16: Positive
    fp8: Positive | None = Field(None, description="null = no FP8 tensor cores")
    fp32: Positive


class Hardware(Section):
    """One accelerator and its links; all rates are per device."""

    name: Name
    kind: Literal["gpu", "cpu"]
    compute_capability: Positive | None = Field(None, description="CUDA's, such as 9.0; null = unknown or no GPU")
    peak_flops: PeakFlops
    memory_bytes: Count = Field(description="memory as the driver reports it")
    memory_bytes_per_s: Positive
    nvlink_bytes_per_s: Positive | None = Field(None, description="one direction; null = none (PCIe)")
    nvlink_domain: Count = Field(8, description="devices that reach each other over NVLink")
    pcie_bytes_per_s: Positive = Field(64e9, description="one direction, host or peer")
    nic_bytes_per_s: Positive = Field(50e9, description="one direction")
    sms: Count = 1


class Paths(Section):
    data: Text = "data"
    runs: Text = "runs"
    scratch: Text | None = None
    readable_by: Literal["owner", "group", "all"] = Field(
        "group", description="who may read runs; only the owner writes"
    )

    @property
    def umask(self) -> int:
        """Permission bits to clear in run folders and their files."""
        return {"owner": 0o077, "group": 0o027, "all": 0o022}[self.readable_by]


EngineName = Literal["mcore", "megatron-lm", "nemo1", "nemo2"]
DEFAULT_ENGINE: EngineName = "mcore"


class Container(Section):
    """A pyxis/enroot container; null in the cluster file = bare metal."""

    image: Text | None = Field(None, description="REGISTRY#IMAGE or a file; of the engines that images does not name")
    images: dict[EngineName, Text] = Field(default={}, description="image by engine")
    mounts: tuple[Text, ...] = Field((), description="src:dst[:flags]")
    workdir: Text | None = None
    mount_home: bool = False
    writable: bool = False


class Storage(Section):
    write_bytes_per_s: Positive | None = Field(None, description="aggregate bandwidth of a job")
    read_bytes_per_s: Positive | None = None
    quota_bytes: Count | None = None


class Slurm(Section):
    partition: Text | None = None
    account: Text | None = None
    qos: Text | None = None
    reservation: Text | None = None
    constraint: Text | None = None
    exclude: tuple[Text, ...] = ()
    switches: Count | None = Field(None, description="leaf switches that a job may span; null = any number")
    switches_wait: Duration | None = Field(None, description="after which it takes any number; null = the site's limit")
    gpu_request: GpuRequest = Field("gpus-per-node", description="none, gres or gpus-per-node; with a type: gres:h100")
    exclusive: bool = True
    mpi: Text | None = Field(None, description="srun --mpi plugin; null = the site's default")
    launch: Literal["srun", "torchrun"] = Field("srun", description="one task per GPU, or torchrun: one per node")
    requeue: bool = True
    max_restarts_without_progress: Count = 3
    extra: tuple[Text, ...] = Field((), description="additional #SBATCH options, e.g. --comment=x")

    def placement(self) -> list[tuple[str, str | None]]:
        """Where a job goes: sbatch's options and their values."""
        names = ("partition", "account", "qos", "reservation", "constraint")
        return [(name, value) for name in names if (value := getattr(self, name)) is not None]


class Cluster(Section):
    """A cluster or machine. Site facts only: nothing here changes the numerics of a run."""

    name: Name
    scheduler: Literal["local", "slurm"]
    nodes: Count | None = Field(None, description="maximum nodes per job; null = unknown")
    gpus_per_node: Count = 8
    paths: Paths = Paths()
    slurm: Slurm = Slurm()
    container: Container | None = None
    venv: Text | None = Field(None, description="bare metal: virtual environment to activate")
    modules: tuple[Text, ...] = Field((), description="bare metal: environment modules to load")
    env: dict[EnvName, Text] = Field(default={}, description="site variables: NCCL_IB_*, NCCL_SOCKET_IFNAME, …")
    env_from: tuple[EnvName, ...] = Field(
        (), description="variables (secrets) that a job must inherit from the environment it is submitted from"
    )
    numa_binding: bool = False
    storage: Storage = Storage()
    price_per_gpu_hour: Positive | None = None
    currency: Name = "USD"
    node_mtbf_hours: Positive | None = Field(None, description="mean time between failures of one node")


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
        return None if self.task.kind == "cpt" else self.task.lora

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


def tuples(value: Any) -> Any:
    """Lists to tuples: the strict model accepts tuples only."""
    if isinstance(value, dict):
        return {k: tuples(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return tuple(tuples(v) for v in value)
    return value
