"""The Plan: what resolving a recipe decided and what it predicts. Prints as the plan document of docs/contracts.md."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from colosseum.recipe.derived import layout_text

PLAN_SCHEMA: Literal["colosseum.plan/1"] = "colosseum.plan/1"


class PlanPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Layout(PlanPart):
    """Everything the planner may decide, with no ``auto`` left."""

    tp: int
    pp: int
    vpp: int
    cp: int
    dp: int
    mbs: int
    microbatches: int
    sequence_parallel: bool
    recompute: Literal["none", "selective", "full"]
    recompute_method: Literal["uniform", "block"] | None = None
    recompute_num_layers: int | None = None
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    distributed_optimizer: bool
    grad_reduce_dtype: Literal["bf16", "fp32"]
    tp_comm_overlap: bool
    p2p_overlap: bool
    batch_p2p: bool
    grad_reduce_overlap: bool
    param_gather_overlap: bool

    @property
    def text(self) -> str:
        """Such as ``TP8 PP10 VPP10 CP4 DP9``."""
        return layout_text(self.tp, self.pp, self.vpp, self.cp, self.dp)


class StageMemory(PlanPart):
    """Bytes on one rank of one pipeline stage at the peak of a step."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float
    workspace_bytes: float
    context_bytes: float
    total_bytes: float


class Memory(PlanPart):
    usable_bytes: float
    """What the plan may fill of the device: device_bytes has to stay below."""
    peak_bytes: float
    """Most that PyTorch has allocated on any rank: ``torch.cuda.max_memory_allocated``, as runs report it."""
    device_bytes: float | None = None
    """The same with fragmentation, CUDA context and NCCL: the largest total_bytes."""
    stages: tuple[StageMemory, ...]
    host_bytes_per_node: float = 0.0
    """Host memory the training state takes besides: a reference policy that is swapped in."""


class Storage(PlanPart):
    """Checkpoints: what they take and how often to write one."""

    checkpoint_bytes: float
    kept: int | None
    """Checkpoints on disk at once; null = all are kept."""
    disk_bytes: float
    free_bytes: float | None = None
    save_time_s: float | None = None
    load_time_s: float | None = None
    advised_every_steps: int | None = None
    """From the nodes' MTBF and the save time (Daly 2006)."""
    goodput: float | None = None
    """Share of the time that goes into steps that count, at the recipe's own cadence."""


class Convention(PlanPart):
    """A figure under both attention conventions: causal-halved and full."""

    causal: float
    full: float


class Production(PlanPart):
    """A run of days or weeks: slower steps than an acceptance run's, saves and restarts (planning/production.py)."""

    step_time_s: float
    step_time_range_s: tuple[float, float]
    mfu: Convention
    restart_factor: float
    """Time of the whole run over the time of its steps."""
    restarts_measured: bool
    """Whether the factor is the cluster's own (storage.goodput) or a published one."""
    days: float | None = None
    days_range: tuple[float, float] | None = None
    gpu_hours: float | None = None
    cost: float | None = None


class CalibrationRef(PlanPart):
    name: str
    hash: str


class Rejected(PlanPart):
    layout: dict[str, Any]
    reason: str


class Plan(PlanPart):
    """Predictions are ``None`` where the hardware file gives nothing to predict from."""

    schema_: Literal["colosseum.plan/1"] = Field(PLAN_SCHEMA, alias="schema")
    id: str | None = None
    fits: bool
    layout: Layout
    step_time_s: float | None = None
    step_time_range_s: tuple[float, float] | None = None
    step_time_parts_s: dict[str, float] = {}
    tokens_per_s_per_gpu: float | None = None
    model_tflops_per_gpu: Convention | None = None
    mfu: Convention | None = None
    mfu_peak_tflops: float | None = None
    memory: Memory | None = None
    production: Production | None = None
    days: float | None = None
    """Days, GPU hours and cost are those of a production run."""
    gpu_hours: float | None = None
    cost: float | None = None
    currency: str | None = None
    storage: Storage | None = None
    calibration: CalibrationRef | None = None
    assumptions: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    advice: tuple[str, ...] = ()
    """Near misses: what to change for a job that fits, or that fills its nodes; best first."""

    def as_json(self) -> dict[str, Any]:
        """The document; ``id`` only where one was given."""
        data = self.model_dump(mode="json", by_alias=True)
        if self.id is None:
            del data["id"]
        return data
