"""Recipe → Plan: every ``auto`` becomes a value, and the job's memory, time and cost are predicted."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from colosseum.errors import Fault, RefusedInput
from colosseum.planning import cost, memory, nearmiss, scaling
from colosseum.planning.constants import Calibration, calibration_for
from colosseum.planning.flops import model_flops_per_token
from colosseum.planning.hardware import usable_bytes
from colosseum.planning.job import RECOMPUTE, Job, Layouts
from colosseum.planning.layout import enumerate_layouts, layout_of
from colosseum.planning.plan import Convention, Layout, Memory, Plan, Rejected
from colosseum.planning.production import production
from colosseum.planning.search import TIE, Evaluated, search
from colosseum.recipe import derived, rules
from colosseum.recipe.base import AUTO
from colosseum.recipe.schema import Recipe
from colosseum.units import format_bytes

ERROR_RANGE = (0.93, 1.10)
"""Holds every published H100 step time over its prediction with the model family left out of the fit."""


def resolve(recipe: Recipe, calibration: Calibration | None = None, *, top: int = 5) -> Plan:
    """The plan of a recipe: its ``auto`` fields decided, the rest kept, all of it predicted.

    Args:
        calibration: measured constants; default, the shipped ones of the recipe's hardware.
        top: how many other candidates to explain.

    Raises:
        RefusedInput: the recipe breaks a rule, or no layout of it is legal.
    """
    if faults := rules.faults(recipe):
        raise RefusedInput(faults, subject=recipe)
    calibration = calibration or calibration_for(recipe.hardware.name)
    found = candidates(recipe, calibration)
    if not len(found):
        raise RefusedInput([no_layout(recipe)], subject=recipe)
    order = found.order(usable_bytes(recipe.hardware))
    best = int(order[0])
    plan = predict(recipe, found.layouts.take(slice(best, best + 1)), calibration)
    others = _others(recipe, found, order[1:], best, top)
    advice = () if plan.fits else nearmiss.fitting(recipe, plan.layout, calibration)
    return plan.model_copy(update={"rejected": others, "advice": advice})


def candidates(recipe: Recipe, calibration: Calibration) -> Evaluated:
    """Every legal layout of the recipe with its step time and memory."""
    free = recipe.recompute.granularity == AUTO
    return search(Job.of(recipe), enumerate_layouts(recipe), calibration.constants, recompute_free=free)


def free_layout(recipe: Recipe) -> Recipe:
    """The recipe with its layout left to the planner; overlap, precision and batch size stay."""
    par = {
        "tp": AUTO,
        "pp": AUTO,
        "vpp": AUTO,
        "cp": AUTO,
        "sequence_parallel": AUTO,
        "first_stage_layers": None,
        "last_stage_layers": None,
        "account_for_embedding_in_pipeline_split": AUTO,
        "account_for_loss_in_pipeline_split": AUTO,
        "microbatch_group_size_per_vp_stage": None,
    }
    tp_comm = recipe.overlap.tp_comm and AUTO  # true may be illegal elsewhere; false stays
    overlap = {"tp_comm": tp_comm, "p2p": AUTO, "batch_p2p": AUTO, "defer_embedding_wgrad_compute": False}
    recompute = {"granularity": AUTO, "method": None, "num_layers": None}
    return recipe.model_copy(
        update={
            "parallelism": recipe.parallelism.model_copy(update=par),
            "batch": recipe.batch.model_copy(update={"mbs": AUTO}),
            "recompute": recipe.recompute.model_copy(update=recompute),
            "overlap": recipe.overlap.model_copy(update=overlap),
        }
    )


def alternatives(recipe: Recipe, plan: Plan, calibration: Calibration, top: int) -> tuple[Rejected, ...]:
    """The best fitting layouts of the same job that the recipe does not allow, against the one it fixes."""
    free = free_layout(recipe)
    if plan.step_time_s is None or top < 1 or rules.faults(free):
        return ()
    found = candidates(free, calibration)
    usable, seen = usable_bytes(recipe.hardware), {_split_of(plan.layout)}
    rejected: list[Rejected] = []
    for i in found.order(usable):
        row = int(i)
        if found.device[row] > usable or len(rejected) == top:
            break
        if (split := _split(found.layouts, row)) not in seen:
            seen.add(split)
            lost = _rejected(free, found, row, plan.step_time_s, 0.0)
            tied = abs(found.time_s[row] / plan.step_time_s - 1.0) <= TIE
            why = "a tie" if tied else "but the recipe fixes its layout"
            rejected.append(lost.model_copy(update={"reason": f"{lost.reason}, {why}"}))
    return tuple(rejected)


def no_layout(recipe: Recipe) -> Fault:
    """Why a recipe whose fields are each legal has no layout at all."""
    gpus, gbs = recipe.resources.gpus, recipe.batch.gbs
    return Fault(
        path="parallelism",
        value=None,
        rule=f"no layout of {gpus:,} GPUs divides {recipe.model.num_layers} layers, {gbs:,} samples a step and "
        f"{recipe.batch.seq_length:,} tokens with the fields that are fixed",
    )


def predict(recipe: Recipe, lay: Layouts, calibration: Calibration) -> Plan:
    """The plan of one layout (``lay`` has one row)."""
    job, constants = Job.of(recipe), calibration.constants
    layout = layout_of(recipe, lay, 0)
    stages = memory.stages(job, lay, constants)
    usable, device = usable_bytes(recipe.hardware), max(s.total_bytes for s in stages)
    held = Memory(
        usable_bytes=usable,
        peak_bytes=max(s.total_bytes - s.context_bytes for s in stages),
        device_bytes=device,
        stages=stages,
        host_bytes_per_node=_host_bytes(job, lay, recipe),
    )
    fits = device <= usable
    if recipe.hardware.kind == "cpu":
        # No promise of a CPU's speed; the layout is still the best by the same model.
        return Plan(
            schema="colosseum.plan/1",
            fits=fits,
            layout=layout,
            memory=held,
            storage=scaling.storage(recipe, None),
            assumptions=("no step time is predicted for a CPU",),
        )
    time = cost.step_time(job, lay, constants)
    step = float(time.total_s[0])
    gpus, tokens = recipe.resources.gpus, derived.tokens_per_step(recipe)
    peak = cost.matmul_peak(job)
    flops = {c: _model_flops(job, recipe, causal=c == "causal") for c in ("causal", "full")}
    rate = {c: f * tokens / step / gpus for c, f in flops.items()}
    mfu = Convention(**{c: r / peak for c, r in rate.items()})
    storage = scaling.storage(recipe, step)
    real = production(
        recipe,
        step,
        mfu,
        site_factor=constants.site_factor,
        goodput=storage.goodput,
        steps=derived.total_steps(recipe),
    )
    return Plan(
        schema="colosseum.plan/1",
        fits=fits,
        layout=layout,
        step_time_s=step,
        step_time_range_s=(step * ERROR_RANGE[0], step * ERROR_RANGE[1]),
        step_time_parts_s=time.parts(0),
        tokens_per_s_per_gpu=tokens / step / gpus,
        model_tflops_per_gpu=Convention(**{c: r / 1e12 for c, r in rate.items()}),
        mfu=mfu,
        mfu_peak_tflops=peak / 1e12,
        memory=held,
        production=real,
        days=real.days,
        gpu_hours=real.gpu_hours,
        cost=real.cost,
        currency=None if real.cost is None else recipe.cluster.currency,
        storage=storage,
        calibration=calibration.ref,
        assumptions=tuple(_assumptions(recipe, layout, calibration)),
    )


def _model_flops(job: Job, recipe: Recipe, *, causal: bool) -> float:
    """Model FLOPs a token; a DPO pair's reference log-probs count as its forward pass when they run in the step."""
    flops = model_flops_per_token(job.shape, recipe.batch.seq_length, causal=causal)
    return flops * (4.0 / 3.0 if job.reference in ("resident", "host") else 1.0)


def _host_bytes(job: Job, lay: Layouts, recipe: Recipe) -> float:
    """A reference policy kept in host memory, a node (NeMo-Aligner swaps it in for the log-prob pass)."""
    if job.reference != "host":
        return 0.0
    params = float(cost.rank_params(job, lay)[0])
    return params * job.dtype_bytes * min(recipe.resources.gpus_per_node, recipe.resources.gpus)


def _others(recipe: Recipe, found: Evaluated, order: Iterable[int], best: int, top: int) -> tuple[Rejected, ...]:
    """The next layouts in the ranking, each parallel split once, with why it lost."""
    usable, rejected, seen = usable_bytes(recipe.hardware), [], {_split(found.layouts, best)}
    fastest = float(found.time_s[best])
    best_fits = bool(found.device[best] <= usable)
    unfit = np.flatnonzero(found.device > usable)
    faster = unfit[np.argsort(found.time_s[unfit])] if best_fits else unfit[:0]
    # First what fits and is slower; then what would be faster but does not fit.
    for rows, most in ((order, top), ((int(i) for i in faster), max(1, top // 2) if top else 0)):
        count = 0
        for i in rows:
            if count >= most:
                break
            row, split = int(i), _split(found.layouts, int(i))
            missing = float(found.device[row]) - usable
            if split in seen or (rows is order and best_fits and missing > 0):
                continue
            if rows is not order and found.time_s[row] >= fastest:
                break
            seen.add(split)
            count += 1
            lost = _rejected(recipe, found, row, fastest, missing)
            tied = missing <= 0 and found.time_s[row] < fastest
            rejected.append(
                lost.model_copy(update={"reason": f"{lost.reason}, a tie: less head-room"}) if tied else lost
            )
    return tuple(rejected)


def _split(lay: Layouts, row: int) -> tuple[float, ...]:
    return tuple(float(column[row]) for column in (lay.tp, lay.pp, lay.vpp, lay.cp, lay.mbs, lay.recompute))


def _split_of(layout: Layout) -> tuple[float, ...]:
    return (layout.tp, layout.pp, layout.vpp, layout.cp, layout.mbs, RECOMPUTE.index(layout.recompute))


def _rejected(recipe: Recipe, found: Evaluated, row: int, fastest: float, missing: float) -> Rejected:
    layout = layout_of(recipe, found.layouts, row)
    slower = float(found.time_s[row]) / fastest - 1.0
    pace = f"{slower:.1%} slower" if slower >= 0 else f"{-slower:.1%} faster"
    reason = f"does not fit by {format_bytes(missing)} ({pace})" if missing > 0 else pace
    keys = ("tp", "pp", "vpp", "cp", "dp", "mbs", "microbatches", "recompute", "recompute_num_layers")
    data = {k: getattr(layout, k) for k in keys}
    for key in ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"):
        if getattr(layout, key):
            data[key] = True
    return Rejected(layout=data, reason=reason)


def _assumptions(recipe: Recipe, layout: Layout, calibration: Calibration) -> Iterable[str]:
    """The assumptions behind the predictions."""
    constants = calibration.constants
    if constants.site_factor == 1.0:
        yield (
            "acceptance: minutes on healthy nodes with synthetic data, as NVIDIA's tables; production: published "
            "factors for data, stragglers, saves and restarts (colosseum calibrate --from RUN replaces them)"
        )
    else:
        yield f"site factor {constants.site_factor:.3f} of calibration {calibration.name}"
    if calibration.hardware != recipe.hardware.name:
        yield f"no calibration of {recipe.hardware.name}: {calibration.name}'s efficiencies with this device's peaks"
    peak = f"{recipe.precision.dtype.upper()} dense peak"
    yield f"MFU: model FLOPs without recomputation and input embedding, over GPUs x step time x the {peak}"
    if recipe.precision.grad_reduce_dtype == AUTO and layout.grad_reduce_dtype == "bf16":
        yield "main gradients in BF16 (grad_reduce_dtype auto), as NVIDIA's performance recipes"
    if recipe.precision.fp8_params == AUTO and recipe.precision.fp8 != "none":
        yield "weights kept and gathered in FP8 (fp8_params auto), as NVIDIA's performance recipes"
    if dropped := derived.dropped_rows(recipe):
        yield f"each epoch drops its last {dropped:,} rows, less than a batch: {derived.total_steps(recipe):,} steps"
    if recipe.alignment is not None:
        yield "sequences are full: padding counts as tokens"


def apply_layout(recipe: Recipe, layout: Layout) -> Recipe:
    """The recipe with every ``auto`` replaced by what the plan decided: what a bundle holds and an engine reads."""
    data = recipe.as_data()
    data["batch"]["mbs"] = layout.mbs
    for key in ("tp", "pp", "vpp", "cp", "sequence_parallel", "first_stage_layers", "last_stage_layers"):
        data["parallelism"][key] = getattr(layout, key)
    for key in ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"):
        data["parallelism"][key] = getattr(layout, key)
    data["recompute"] |= {
        "granularity": layout.recompute,
        "method": layout.recompute_method,
        "num_layers": layout.recompute_num_layers,
    }
    data["precision"]["grad_reduce_dtype"] = layout.grad_reduce_dtype
    data["precision"]["fp8_params"] = Job.of(recipe).fp8_params
    data["optimizer"]["distributed"] = layout.distributed_optimizer
    data["overlap"] |= {
        "tp_comm": layout.tp_comm_overlap,
        "p2p": layout.p2p_overlap,
        "batch_p2p": layout.batch_p2p,
        "grad_reduce": layout.grad_reduce_overlap,
        "param_gather": layout.param_gather_overlap,
    }
    return Recipe.from_data(data)
