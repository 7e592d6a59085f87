"""A launch as a tree of calls, which ``calls_start.py`` makes in the container (NeMo 2, Megatron-Bridge)."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from colosseum.recipe.schema import Precision

PROGRAM = "calls_start.py"
DTYPES = {"bf16": {"name": "torch:bfloat16"}, "fp32": {"name": "torch:float32"}}
ACTIVATIONS = {
    "squared_relu": {"name": "megatron.core.activations:squared_relu"},
    "gelu": {"name": "torch.nn.functional:gelu"},
    "silu": {"name": "torch.nn.functional:silu"},
}

Node = dict[str, Any]


def call(target: str, **arguments: Any) -> Node:
    """A call of ``module:name``."""
    return {"call": target, "with": arguments}


def mixed_precision(precision: Precision) -> Node:
    """Arguments that NeMo 2's MegatronMixedPrecision and Bridge's MixedPrecisionConfig share."""
    dtype = DTYPES[precision.dtype]
    found: Node = {
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "autocast_enabled": False,
        "grad_reduce_in_fp32": precision.grad_reduce_dtype == "fp32",
    }
    if precision.fp8 == "none":
        return found
    first, last = precision.bf16_layers.first, precision.bf16_layers.last
    return found | {
        "fp8": precision.fp8_format,
        "fp8_recipe": precision.fp8,
        "fp8_margin": precision.fp8_margin,
        "fp8_amax_history_len": precision.fp8_amax_history_len,
        "fp8_amax_compute_algo": precision.fp8_amax_compute_algo,
        "fp8_wgrad": precision.fp8_wgrad,
        "fp8_param_gather": precision.fp8_params,
        "first_last_layers_bf16": bool(first or last),
        "num_layers_at_start_in_bf16": first,
        "num_layers_at_end_in_bf16": last,
    }


def files(name: str, tree: Node) -> dict[str, bytes]:
    """The tree as a file of that name, and the program that reads it."""
    program = resources.files("colosseum.engines").joinpath(PROGRAM).read_bytes()
    return {name: (json.dumps(tree, indent=2) + "\n").encode(), PROGRAM: program}


def setting(path: str, value: Any) -> str:
    """A word that gives an argument of the tree another value: ``config.checkpoint.load="x"``."""
    return f"{path}={json.dumps(value)}"
