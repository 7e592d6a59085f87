"""What cost and memory are computed from: one job (scalars) and any number of layouts of it (arrays)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from colosseum.planning.flops import Array, Shape
from colosseum.planning.plan import Layout
from colosseum.recipe import derived
from colosseum.recipe.cluster import Hardware
from colosseum.recipe.schema import Recipe
from colosseum.recipe.tasks import Lora

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The part of a recipe that no layout changes."""

    shape: Shape
    hardware: Hardware
    gbs: int
    seq_length: int
    gpus: int
    sequences: int
    """Sequences a sample carries: 2 for DPO (chosen and rejected), else 1."""
    reference: str
    """DPO: where the reference policy lives (precomputed, resident, host); else ''."""
    dtype_bytes: int
    fp8: str
    fp8_params: bool
    moments_bytes: float
    fused_cross_entropy: bool
    attention_recompute: bool
    mlp_recompute: bool
    """Selective recomputation covers these modules (layernorm: nothing to do, Transformer Engine's norms are fused)."""

    adapter_cut_params: float
    """Of a layer's LoRA adapters, what tensor parallelism cuts."""
    adapter_whole_params: float
    """What each of its ranks has."""
    frozen: bool
    """LoRA: only the adapters are trained."""

    @property
    def is_fp8(self) -> bool:
        return self.fp8 != "none"

    @classmethod
    def of(cls, recipe: Recipe) -> Job:
        """The job of a recipe."""
        precision = recipe.precision
        shape = Shape.of(recipe.model, recipe.batch.seq_length)
        cut, whole = _adapters(shape, recipe.lora)
        return cls(
            shape=shape,
            hardware=recipe.hardware,
            gbs=recipe.batch.gbs,
            seq_length=recipe.batch.seq_length,
            gpus=recipe.resources.gpus,
            sequences=derived.sequences_per_sample(recipe),
            reference=_reference(recipe),
            dtype_bytes=2 if precision.dtype == "bf16" else 4,
            fp8=precision.fp8,
            fp8_params=bool(precision.fp8_params) and precision.fp8 != "none",
            moments_bytes=2.0 if precision.moments_dtype == "bf16" else 4.0,
            fused_cross_entropy=recipe.fusion.cross_entropy,
            attention_recompute="core_attn" in recipe.recompute.modules,
            mlp_recompute="mlp" in recipe.recompute.modules,
            adapter_cut_params=cut,
            adapter_whole_params=whole,
            frozen=recipe.lora is not None,
        )


def _reference(recipe: Recipe) -> str:
    task = recipe.preference
    if task is None:
        return ""
    # With LoRA it is the frozen model itself: nothing is swapped in.
    return "resident" if task.reference == "host" and task.lora is not None else task.reference


def _adapters(shape: Shape, lora: Lora | None) -> tuple[float, float]:
    """Parameters of one layer's adapters: rank * (in + out) each, of which tensor parallelism cuts one half."""
    if lora is None:
        return 0.0, 0.0
    wide = shape.ffn * (2 if shape.gated else 1)
    halves = {  # cut, whole
        "linear_qkv": (shape.qkv_width, shape.hidden),
        "linear_proj": (shape.heads * shape.head_dim, shape.hidden),
        "linear_fc1": (wide, shape.hidden),
        "linear_fc2": (shape.ffn, shape.hidden),
    }
    cut, whole = (sum(halves[target][half] for target in lora.targets) for half in (0, 1))
    return float(lora.rank * cut), float(lora.rank * whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """N layouts as columns; every field is an array of N numbers (booleans as 0 and 1)."""

    tp: Array
    pp: Array
    vpp: Array
    cp: Array
    dp: Array
    mbs: Array
    microbatches: Array
    first: Array
    """Layers of the first pipeline rank."""
    middle: Array
    """Layers of an interior rank (0 where pp < 3)."""
    last: Array
    """Layers of the last rank (equal to ``first`` where pp = 1)."""
    account_embedding: Array
    account_loss: Array
    sequence_parallel: Array
    recompute: Array
    """Index into RECOMPUTE."""
    recomputed: Array
    """Share of the layers that full recomputation covers."""
    recompute_group: Array
    """Layers between two kept inputs (1 unless uniform with num_layers)."""
    recompute_block: Array
    """Layers of each chunk that method block recomputes; 0 = uniform, or no full recomputation."""
    grad_bytes: Array
    distributed: Array
    tp_overlap: Array
    p2p_overlap: Array
    grad_overlap: Array
    param_overlap: Array

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def chunk_layers(self) -> Array:
        """Layers of the largest model chunk."""
        return np.maximum(1.0, np.ceil(np.maximum(np.maximum(self.first, self.middle), self.last) / self.vpp))

    def take(self, index: Any) -> Layouts:
        """Some of the layouts, by index, slice or mask."""
        return Layouts(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def joined(self, *others: Layouts) -> Layouts:
        """These layouts and the others."""
        names = (f.name for f in fields(self))
        return Layouts(**{n: np.concatenate([getattr(part, n) for part in (self, *others)]) for n in names})


def as_columns(layers: int, layouts: Sequence[Layout]) -> Layouts:
    """Layouts of the plan document as columns."""
    rows = []
    for lay in layouts:
        stages = derived.stage_layers(
            layers,
            lay.pp,
            (lay.first_stage_layers, lay.last_stage_layers),
            embedding=lay.account_for_embedding_in_pipeline_split,
            loss=lay.account_for_loss_in_pipeline_split,
        )
        assert stages is not None, "a layout's stages hold whole layers"
        first, middle, last = stages[0], stages[1] if lay.pp > 2 else 0, stages[-1]
        chunk = max(1, max(first, middle, last) // lay.vpp)
        number = lay.recompute_num_layers
        block = lay.recompute_method == "block" and number is not None
        rows.append(
            {
                "tp": lay.tp,
                "pp": lay.pp,
                "vpp": lay.vpp,
                "cp": lay.cp,
                "dp": lay.dp,
                "mbs": lay.mbs,
                "microbatches": lay.microbatches,
                "first": first,
                "middle": middle,
                "last": last,
                "account_embedding": lay.account_for_embedding_in_pipeline_split,
                "account_loss": lay.account_for_loss_in_pipeline_split,
                "sequence_parallel": lay.sequence_parallel,
                "recompute": RECOMPUTE.index(lay.recompute),
                "recomputed": min(1.0, (number or 1) / chunk) if block else 1.0,
                "recompute_group": (number or 1) if lay.recompute_method == "uniform" else 1,
                "recompute_block": (number or 0) if block else 0,
                "grad_bytes": 2 if lay.grad_reduce_dtype == "bf16" else 4,
                "distributed": lay.distributed_optimizer,
                "tp_overlap": lay.tp_comm_overlap,
                "p2p_overlap": lay.p2p_overlap,
                "grad_overlap": lay.grad_reduce_overlap,
                "param_overlap": lay.param_gather_overlap,
            }
        )
    return Layouts(**{f.name: np.array([float(r[f.name] or 0) for r in rows]) for f in fields(Layouts)})
