"""Recipe → Plan: every ``auto`` becomes a value."""

from __future__ import annotations

from typing import Any

from colosseum.errors import Fault, RefusedInput
from colosseum.planning.plan import Layout, Plan
from colosseum.recipe.schema import AUTO, Recipe


def resolve(recipe: Recipe) -> Plan:
    """The plan of a recipe: the given layout, derived dp and microbatches.

    Raises:
        RefusedInput: gpus or gbs do not divide by the layout.
    """
    par, over = recipe.parallelism, recipe.overlap

    def given(value: Any, default: Any) -> Any:
        return default if value == AUTO else value

    tp, pp, vpp, cp = (int(given(v, 1)) for v in (par.tp, par.pp, par.vpp, par.cp))
    mbs = int(given(recipe.batch.mbs, 1))
    dp, rest = divmod(recipe.resources.gpus, tp * pp * cp)
    if rest or not dp:
        raise RefusedInput(
            [Fault(path="resources.gpus", value=recipe.resources.gpus, rule=f"must be a multiple of {tp * pp * cp}")]
        )
    microbatches, rest = divmod(recipe.batch.gbs, dp * mbs)
    if rest or not microbatches:
        raise RefusedInput([Fault(path="batch.gbs", value=recipe.batch.gbs, rule=f"must be a multiple of {dp * mbs}")])
    sharded = bool(given(recipe.optimizer.distributed, dp * cp > 1))
    sequence_parallel = bool(given(par.sequence_parallel, tp > 1))
    p2p = bool(given(over.p2p, vpp > 1))
    grad_dtype = recipe.precision.grad_reduce_dtype
    layout = Layout(
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        dp=dp,
        mbs=mbs,
        microbatches=microbatches,
        sequence_parallel=sequence_parallel,
        recompute="none" if recipe.recompute.granularity == AUTO else recipe.recompute.granularity,
        recompute_method=recipe.recompute.method,
        recompute_num_layers=recipe.recompute.num_layers,
        first_stage_layers=par.first_stage_layers,
        last_stage_layers=par.last_stage_layers,
        account_for_embedding_in_pipeline_split=bool(given(par.account_for_embedding_in_pipeline_split, False)),
        account_for_loss_in_pipeline_split=bool(given(par.account_for_loss_in_pipeline_split, False)),
        distributed_optimizer=sharded,
        grad_reduce_dtype="fp32" if grad_dtype == AUTO else grad_dtype,
        tp_comm_overlap=bool(given(over.tp_comm, tp > 1 and sequence_parallel)),
        p2p_overlap=p2p,
        batch_p2p=bool(given(over.batch_p2p, not p2p)),
        grad_reduce_overlap=bool(given(over.grad_reduce, dp * cp > 1)),
        param_gather_overlap=bool(given(over.param_gather, sharded)),
    )
    return Plan(schema="colosseum.plan/1", fits=True, layout=layout)


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
    data["optimizer"]["distributed"] = layout.distributed_optimizer
    data["overlap"] |= {
        "tp_comm": layout.tp_comm_overlap,
        "p2p": layout.p2p_overlap,
        "batch_p2p": layout.batch_p2p,
        "grad_reduce": layout.grad_reduce_overlap,
        "param_gather": layout.param_gather_overlap,
    }
    return Recipe.from_data(data)
