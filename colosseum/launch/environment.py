"""Environment variables of the ranks, each with its reason. Site variables (NCCL_IB_*, interfaces) are the cluster's.

Sources: the Megatron-LM and Transformer Engine documentation, NCCL's and PyTorch's lists of environment variables.
"""

from __future__ import annotations

import os

from colosseum.engines.base import Setting
from colosseum.engines.registry import engine_of
from colosseum.errors import Fault
from colosseum.planning.plan import Layout, Plan
from colosseum.recipe.schema import Recipe
from colosseum.recipe.site import duplicate_variable_faults, secret_faults

UNSET = "not set: export it, then submit again (a job inherits it from the environment it is submitted from)"


def engine_settings(recipe: Recipe, plan: Plan) -> list[Setting]:
    """The variables of a resolved recipe, in the order they are written."""
    found: list[Setting] = []

    def put(name: str, value: str, reason: str) -> None:
        found.append(Setting(name=name, value=value, reason=reason))

    put("PYTHONUNBUFFERED", "1", "output is unbuffered: the last lines of a killed rank are in its log")
    put("OMP_NUM_THREADS", "1", "ranks share a node's cores")
    if recipe.hardware.kind != "gpu":
        return found
    layout = plan.layout
    if layout.tp > 1 or layout.cp > 1:
        put(
            "CUDA_DEVICE_MAX_CONNECTIONS",
            "1",
            "kernels start in launch order: communication overlaps; Megatron asks for it",
        )
    if _communicates_beside_layer_norms(layout):
        for direction in ("FWD", "BWD"):
            put(f"NVTE_{direction}_LAYERNORM_SM_MARGIN", "16", "layer norms leave SMs to overlapped communication")
    put("NCCL_NVLS_ENABLE", "0", "NVLink SHARP buffers cost memory and are not used")
    put("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "less fragmentation of GPU memory")
    put("TORCH_NCCL_HIGH_PRIORITY", "1", "communication kernels go first")
    if layout.pp > 1:
        put("NCCL_P2P_NET_CHUNKSIZE", "2097152", "pipeline sends in larger pieces")
    found += engine_of(recipe.engine).settings
    if recipe.train.deterministic:
        put("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0", "deterministic mode")
    put("NCCL_DEBUG", "WARN", "a failed collective says why in the rank's log")
    put("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "a hang leaves the flight recorder's traces in attempts/NNN/stacks")
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        put(name, "2000", "collectives the flight recorder keeps; torch has had two names for it")
    return found


def _communicates_beside_layer_norms(layout: Layout) -> bool:
    """Whether collectives overlap compute: of gradients and weights between replicas, or of tensor parallelism."""
    between_replicas = layout.dp * layout.cp > 1 and (layout.grad_reduce_overlap or layout.param_gather_overlap)
    return between_replicas or (layout.tp > 1 and layout.tp_comm_overlap)


def settings(recipe: Recipe, plan: Plan) -> list[Setting]:
    """All variables of the ranks: the engine's, then the site's, which win."""
    site = recipe.cluster.env
    ours = [s for s in engine_settings(recipe, plan) if s.name not in site]
    return ours + [Setting(name=n, value=v, reason=f"of cluster {recipe.cluster.name}") for n, v in site.items()]


def unset(recipe: Recipe) -> list[Fault]:
    """Variables of ``cluster.env_from`` that this environment, which the job inherits, does not have."""
    absent = [name for name in recipe.cluster.env_from if not os.environ.get(name)]
    return [Fault(path="cluster.env_from", value=name, rule=f"is {UNSET}") for name in absent]


def faults(recipe: Recipe) -> list[Fault]:
    """Site facts that a bundle must not hold or cannot use, and variables that are set twice."""
    scratch = recipe.cluster.paths.scratch
    relative = [] if scratch is None or scratch.startswith("/") else [scratch]
    rule = "must be an absolute path: a folder that each node has"
    found = [Fault(path="cluster.paths.scratch", value=value, rule=rule) for value in relative]
    return found + secret_faults(recipe) + duplicate_variable_faults(recipe)
