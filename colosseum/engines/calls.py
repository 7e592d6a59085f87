"""A launch as a tree of calls, which ``calls_start.py`` makes in the container (NeMo 2, Megatron-Bridge)."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

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


def files(name: str, tree: Node) -> dict[str, bytes]:
    """The tree as a file of that name, and the program that reads it."""
    program = resources.files("colosseum.engines").joinpath(PROGRAM).read_bytes()
    return {name: (json.dumps(tree, indent=2) + "\n").encode(), PROGRAM: program}


def setting(path: str, value: Any) -> str:
    """A word that gives an argument of the tree another value: ``config.checkpoint.load="x"``."""
    return f"{path}={json.dumps(value)}"
