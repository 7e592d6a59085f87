"""Reads the optimizer state of one kind into the other: distributed (sharded over replicas) or not.

Both kinds of megatron-core write moments under ``optimizer.state.exp_avg.WEIGHT`` and ``.exp_avg_sq.``. They differ in
the FP32 weights (``.param.`` if distributed, else ``.fp32_param.`` in BF16 and none in FP32, where the weight itself
is the FP32 weight) and in where the step counter and the parameter groups stand.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedBase

from colosseum.runtime.optimizer import parts
from colosseum.runtime.state import CONTENT

DISTRIBUTED, PLAIN = "optimizer.state.param.", "optimizer.state.fp32_param."
"""Prefixes of the FP32 weights' keys."""


def ask_other_kind(state: dict[str, Any], *, to_sharded: bool, fp32: bool) -> None:
    """Changes the optimizer's sharded state, in place, so that it asks for what the other kind wrote."""
    if not to_sharded:
        # Groups come with the step, as the other kind wrote them: `as_own_kind` makes this kind's.
        del state.get("optimizer", state)["param_groups"]
    elif fp32:
        for tensors in state["param_state"].values():
            del tensors["param"]
        return
    before, after = (DISTRIBUTED, PLAIN) if to_sharded else (PLAIN, DISTRIBUTED)
    for value in nested_values(state):
        if isinstance(value, ShardedBase) and value.key.startswith(before):
            value.key = after + value.key.removeprefix(before)


def as_own_kind(optimizer: Any, state: dict[str, Any], *, to_sharded: bool, fp32: bool) -> dict[str, Any]:
    """What was loaded, in the form that this optimizer's ``load_state_dict`` reads; the model has its weights already.

    The rates in the groups are this optimizer's own: loading restores them anyway.
    """
    (own,) = parts(optimizer)
    step = _step(state)
    if to_sharded:
        groups = [{**group, "step": step} for group in own.state_dict()["optimizer"]["param_groups"]]
        if fp32:
            weights = (weight for buffer in own.buffers for weight in buffer.param_index_map)
            for number, weight in enumerate(weights):
                state["param_state"][number]["param"] = weight.detach()
        kind = CONTENT["distrib_optim_sharding_type"]
        return {
            "optimizer": {"param_groups": groups},
            "param_state": state["param_state"],
            "param_state_sharding_type": kind,
        }
    inner = {"state": (state if fp32 else state["optimizer"])["state"]}
    groups = own.optimizer.state_dict()["param_groups"]
    if isinstance(own.optimizer, torch.optim.Adam):
        inner["state"]["common_step"] = torch.tensor(float(step))
    else:  # Transformer Engine's counts in the groups
        groups = [{**group, "step": step} for group in groups]
    inner["param_groups"] = groups
    return inner if fp32 else {"optimizer": inner, "fp32_from_fp16_params": state["fp32_from_fp16_params"]}


def _step(state: dict[str, Any]) -> int:
    """Steps of the optimizer, from the part of the state that is no tensor."""
    inner = state.get("optimizer", state)
    common = inner.get("state", {}).get("common_step")
    return int(common if common is not None else max(group["step"] for group in inner["param_groups"]))
