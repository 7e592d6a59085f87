"""Every legal layout of a recipe, as columns. What the recipe fixes is kept; what it leaves ``auto`` is enumerated.

The rules are those of ``recipe/rules.py``, written for arrays: a layout that comes out of here breaks none of them
(tested by sampling). Recomputation is left to the search, which chooses the least that fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from colosseum.planning.flops import Array
from colosseum.planning.job import RECOMPUTE, Layouts
from colosseum.planning.plan import Layout
from colosseum.recipe import derived
from colosseum.recipe.base import AUTO
from colosseum.recipe.schema import Recipe

Mask = npt.NDArray[np.bool_]
MAX_MBS = 8
"""Largest microbatch tried: beyond it activations grow and GEMMs gain nothing."""
MAX_CP = 64
FP8_UNIT = 16


def enumerate_layouts(recipe: Recipe) -> Layouts:
    """All legal layouts, ``auto`` recomputation as none; no rows where there is none."""
    grid = _grid(recipe)
    grid = {k: v[_legal(recipe, grid)] for k, v in grid.items()}
    return _columns(recipe, grid)


def _divisors(number: int, most: int) -> list[int]:
    return [d for d in range(1, min(number, most) + 1) if number % d == 0]


def _axis(value: Any, candidates: Iterable[int]) -> list[int]:
    return list(candidates) if value == AUTO else [int(value)]


def _grid(recipe: Recipe) -> dict[str, Array]:
    """tp x pp x cp x accounting, cut to whole replicas and even stages, then x mbs x vpp."""
    par, model, gpus = recipe.parallelism, recipe.model, recipe.resources.gpus
    domain = recipe.hardware.nvlink_domain if recipe.hardware.kind == "gpu" else recipe.resources.gpus_per_node
    tps = _axis(par.tp, _divisors(gpus, min(domain, model.num_attention_heads)))
    pps = _axis(par.pp, _divisors(gpus, model.num_layers + 2))
    cps = _axis(par.cp, _divisors(gpus, MAX_CP))
    embedding = _axis(par.account_for_embedding_in_pipeline_split, (0, 1))
    loss = _axis(par.account_for_loss_in_pipeline_split, (0, 1))
    base = _mesh(tp=tps, pp=pps, cp=cps, embedding=embedding, loss=loss)
    replica = base["tp"] * base["pp"] * base["cp"]
    base["dp"] = gpus / replica
    base["mbs"], base["vpp"] = np.ones_like(replica), np.ones_like(replica)
    # Cut what no mbs and vpp can mend before these multiply the rows.
    even = par.first_stage_layers is None and par.last_stage_layers is None
    slots = model.num_layers + base["embedding"] + base["loss"]
    base = _where(base, (gpus % replica == 0) & ((slots % base["pp"] == 0) | (not even)))
    base = _where(base, (recipe.batch.gbs % base["dp"] == 0) & _shape(recipe, base))
    mbss = _axis(recipe.batch.mbs, range(1, MAX_MBS + 1))
    base = _crossed(base, "mbs", mbss)
    base = _where(base, recipe.batch.gbs / base["dp"] % base["mbs"] == 0)
    each = (model.num_layers + base["embedding"] + base["loss"]) / base["pp"]
    most = int(np.max(each, initial=1.0)) if even else model.num_layers
    vpps = [v for v in _axis(par.vpp, range(1, most + 1)) if not even or v == 1 or np.any(each % v == 0)]
    base = _crossed(base, "vpp", vpps or [int(v) for v in _axis(par.vpp, (1,))])
    return _where(base, (base["vpp"] == 1) | ((base["pp"] > 1) & (base["vpp"] <= most)))


def _mesh(**axes: list[int]) -> dict[str, Array]:
    parts = np.meshgrid(*(np.array(a, dtype=np.float64) for a in axes.values()), indexing="ij")
    return {name: part.ravel() for name, part in zip(axes, parts, strict=True)}


def _where(grid: dict[str, Array], mask: Mask) -> dict[str, Array]:
    return {k: v[mask] for k, v in grid.items()}


def _crossed(base: dict[str, Array], name: str, values: list[int]) -> dict[str, Array]:
    """Each row once with every value of one more field."""
    rows = len(base["tp"])
    crossed = {k: np.repeat(v, len(values)) for k, v in base.items()}
    return crossed | {name: np.tile(np.array(values, dtype=np.float64), rows)}


def _legal(recipe: Recipe, g: dict[str, Array]) -> Mask:
    """The rows that break no rule."""
    ok = _batch_and_stages(recipe, g) & _shape(recipe, g) & _overlap(recipe, g)
    return ok & _fp8(recipe, g) if recipe.precision.fp8 != "none" else ok


def _sequence_parallel(recipe: Recipe, g: dict[str, Array]) -> Mask:
    choice = recipe.parallelism.sequence_parallel
    return g["tp"] > 1 if choice == AUTO else np.full(g["tp"].shape, bool(choice))


def _batch_and_stages(recipe: Recipe, g: dict[str, Array]) -> Mask:
    """Whole microbatches; equal stages and chunks; whole groups of microbatches when interleaved."""
    par, layers = recipe.parallelism, recipe.model.num_layers
    per_replica = recipe.batch.gbs / g["dp"]
    ok: Mask = per_replica % g["mbs"] == 0
    micro = per_replica / g["mbs"]
    pp, vpp = g["pp"], g["vpp"]
    first, last = par.first_stage_layers, par.last_stage_layers
    if first is not None or last is not None:
        others = pp - (first is not None) - (last is not None)
        rest = layers - (first or 0) - (last or 0)
        each = np.where(others > 0, rest / np.maximum(others, 1), 0)
        ok &= (pp > 1) & (others >= 0) & (each % 1 == 0) & ((others > 0) == (rest > 0))
        ok &= (g["embedding"] == 0) & (g["loss"] == 0)
        for given in (first, last):
            ok &= (given is None) | (vpp == 1) | ((given or 0) % vpp == 0)
        ok &= (others == 0) | (each % vpp == 0)
    else:
        each = (layers + g["embedding"] + g["loss"]) / pp
        ok &= (each % 1 == 0) & (each % vpp == 0) & ((pp == 1) | (each - np.maximum(g["embedding"], g["loss"]) >= 1))
        # Without a pipeline there is nothing to split: of the free choices only one is listed.
        for name, choice in (
            ("embedding", par.account_for_embedding_in_pipeline_split),
            ("loss", par.account_for_loss_in_pipeline_split),
        ):
            ok &= (pp > 1) | (g[name] == 0) | (choice != AUTO)
    group = np.where(par.microbatch_group_size_per_vp_stage is None, pp, par.microbatch_group_size_per_vp_stage or 1)
    left = micro % np.maximum(group, 1)
    ok &= (vpp == 1) | ((pp <= group) & (group <= micro) & ((left == 0) | (left >= pp)))
    if recipe.recompute.granularity == "full" and recipe.recompute.num_layers is not None:
        ok &= _recompute_fits(recipe, g, each)
    if recipe.preference is not None and recipe.preference.logprob_mbs is not None:
        ok &= per_replica % recipe.preference.logprob_mbs == 0
    return ok


def _recompute_fits(recipe: Recipe, g: dict[str, Array], each: Array) -> Mask:
    """A given number of recomputed layers divides a chunk (uniform) or is at most one (block)."""
    number = recipe.recompute.num_layers or 1
    chunk = each / g["vpp"]
    if recipe.recompute.method == "block":
        return np.asarray(number <= chunk)
    ok: Mask = chunk % number == 0
    for name in ("embedding", "loss"):
        ok &= (g[name] == 0) | ((chunk - 1) % number == 0)
    for given in (recipe.parallelism.first_stage_layers, recipe.parallelism.last_stage_layers):
        ok &= (given is None) | ((given or 0) / g["vpp"] % number == 0)
    return ok


def _shape(recipe: Recipe, g: dict[str, Array]) -> Mask:
    """Heads, KV groups, FFN columns and sequence split evenly."""
    model, tp, cp, seq = recipe.model, g["tp"], g["cp"], recipe.batch.seq_length
    groups = model.query_groups
    ok: Mask = (model.num_attention_heads % tp == 0) & (model.ffn % tp == 0)
    ok &= (groups % tp == 0) | (tp % groups == 0)
    ok &= (cp == 1) | (seq % (2 * cp) == 0)
    parallel = _sequence_parallel(recipe, g)
    ok &= ~parallel | ((tp > 1) & (seq % (cp * tp) == 0))
    return ok


def _overlap(recipe: Recipe, g: dict[str, Array]) -> Mask:
    """What the overlap and optimizer settings ask of the layout."""
    over, pp, vpp, shards = recipe.overlap, g["pp"], g["vpp"], g["dp"] * g["cp"]
    ok = np.ones(pp.shape, dtype=bool)
    if over.tp_comm is True:
        ok &= (g["tp"] > 1) & _sequence_parallel(recipe, g)
    if over.p2p is True:
        ok &= vpp > 1
    if over.p2p is False:
        ok &= (vpp == 1) | ((pp != 2) if recipe.hardware.kind == "gpu" else False)
    if over.batch_p2p is True and over.p2p == AUTO:
        ok &= vpp == 1
    if over.defer_embedding_wgrad_compute:
        ok &= pp > 1
    sharded = shards > 1 if recipe.optimizer.distributed == AUTO else np.full(pp.shape, recipe.optimizer.distributed)
    if recipe.precision.moments_dtype == "bf16" or over.param_gather is True:
        ok &= sharded
    return ok


def _fp8(recipe: Recipe, g: dict[str, Array]) -> Mask:
    """Dimensions of FP8 GEMMs divide by 16; layers kept in BF16 fit a pipeline rank."""
    model, tp, cp, seq = recipe.model, g["tp"], g["cp"], recipe.batch.seq_length
    unit = FP8_UNIT * tp
    wide = model.num_attention_heads * model.head_dim
    ok: Mask = (
        (model.ffn % unit == 0) & (wide % unit == 0) & ((wide + 2 * model.query_groups * model.head_dim) % unit == 0)
    )
    tokens = np.where(cp > 1, seq, seq * g["mbs"])
    ok &= tokens % np.where(cp > 1, FP8_UNIT * cp, FP8_UNIT) == 0
    parallel = _sequence_parallel(recipe, g)
    ok &= ~parallel | (seq * g["mbs"] % (derived.fp8_local_rows(recipe) * tp * cp) == 0)
    kept = recipe.precision.bf16_layers
    ok &= max(kept.first, kept.last) <= model.num_layers // g["pp"]
    return ok


def _columns(recipe: Recipe, g: dict[str, Array]) -> Layouts:
    """Rows with the derived settings filled in, by the schema's meaning of ``auto``."""
    par, over, rec = recipe.parallelism, recipe.overlap, recipe.recompute
    layers, pp, ones = recipe.model.num_layers, g["pp"], np.ones_like(g["pp"])
    first, last = par.first_stage_layers, par.last_stage_layers
    others = np.maximum(pp - (first is not None) - (last is not None), 1)
    each = np.where(pp > 1, (layers + g["embedding"] + g["loss"] - (first or 0) - (last or 0)) / others, layers)
    parallel = _sequence_parallel(recipe, g)
    shards = g["dp"] * g["cp"] > 1
    sharded = _given(recipe.optimizer.distributed, shards)
    # megatron-core gathers parameters under compute only where it also reduces gradients under it.
    grad_overlap = _given(over.grad_reduce, shards)
    full = rec.granularity == "full"
    block = rec.method == "block" and full
    number = float(rec.num_layers or 1)
    found = Layouts(
        tp=g["tp"],
        pp=pp,
        vpp=g["vpp"],
        cp=g["cp"],
        dp=g["dp"],
        mbs=g["mbs"],
        microbatches=recipe.batch.gbs / (g["dp"] * g["mbs"]),
        first=np.where(pp > 1, each - g["embedding"] if first is None else float(first), layers),
        middle=np.where(pp > 2, each, 0.0),
        last=np.where(pp > 1, each - g["loss"] if last is None else float(last), layers),
        account_embedding=g["embedding"],
        account_loss=g["loss"],
        sequence_parallel=parallel.astype(np.float64),
        recompute=ones * (0 if rec.granularity == AUTO else RECOMPUTE.index(rec.granularity)),
        recomputed=ones,
        recompute_group=ones * (number if full and not block else 1.0),
        recompute_block=ones * (number if block else 0.0),
        grad_bytes=ones * (4.0 if grad_dtype(recipe) == "fp32" else 2.0),
        distributed=sharded,
        tp_overlap=_given(over.tp_comm, (g["tp"] > 1) & parallel & (recipe.hardware.kind == "gpu")),
        p2p_overlap=_given(over.p2p, g["vpp"] > 1),
        grad_overlap=grad_overlap,
        param_overlap=_given(over.param_gather, (sharded > 0) & (grad_overlap > 0)),
    )
    return replace(found, recomputed=np.minimum(1.0, number / found.chunk_layers)) if block else found


def _given(value: bool | str, default: Mask) -> Array:
    return default.astype(np.float64) if value == AUTO else np.full(default.shape, float(value))


def grad_dtype(recipe: Recipe) -> str:
    """Main gradients: as given; auto = the training dtype, as NVIDIA's performance recipes have it."""
    choice = recipe.precision.grad_reduce_dtype
    return recipe.precision.dtype if choice == AUTO else choice


def layout_of(recipe: Recipe, lay: Layouts, row: int) -> Layout:
    """One row as the plan document's layout."""
    par, over = recipe.parallelism, recipe.overlap

    def whole(name: str) -> int:
        return round(float(getattr(lay, name)[row]))

    kind = RECOMPUTE[whole("recompute")]
    block = whole("recompute_block")
    p2p = bool(whole("p2p_overlap"))
    method = None
    if kind == "full":
        method = "block" if block else "uniform"
    return Layout(
        tp=whole("tp"),
        pp=whole("pp"),
        vpp=whole("vpp"),
        cp=whole("cp"),
        dp=whole("dp"),
        mbs=whole("mbs"),
        microbatches=whole("microbatches"),
        sequence_parallel=bool(whole("sequence_parallel")),
        recompute=kind,
        recompute_method=method,
        recompute_num_layers=(block or whole("recompute_group")) if kind == "full" else None,
        first_stage_layers=par.first_stage_layers,
        last_stage_layers=par.last_stage_layers,
        account_for_embedding_in_pipeline_split=bool(whole("account_embedding")),
        account_for_loss_in_pipeline_split=bool(whole("account_loss")),
        distributed_optimizer=bool(whole("distributed")),
        grad_reduce_dtype="fp32" if whole("grad_bytes") == 4 else "bf16",
        tp_comm_overlap=bool(whole("tp_overlap")),
        p2p_overlap=p2p,
        batch_p2p=(not p2p) if over.batch_p2p == AUTO else bool(over.batch_p2p),
        grad_reduce_overlap=bool(whole("grad_overlap")),
        param_gather_overlap=bool(whole("param_overlap")),
    )
