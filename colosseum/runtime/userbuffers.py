"""Transformer Engine's communication buffers for overlapping tensor-parallel collectives with GEMMs."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import yaml

from colosseum.recipe.schema import Recipe
from colosseum.runtime import device
from colosseum.runtime.failures import ConfigFailure


def start(recipe: Recipe) -> bool:
    """Registers the buffers: after the process groups are formed, before a layer is built. True if it did.

    As Megatron-LM's ``_initialize_tp_communicators``, bootstrapped over NCCL: MPI is not needed.

    Raises:
        ConfigFailure: ``overlap.tp_comm_cfg`` cannot be read.
    """
    if not (recipe.overlap.tp_comm and device.is_cuda()):
        return False
    from transformer_engine.pytorch.module import base

    base.initialize_ub(
        shape=shape(recipe),
        tp_size=int(recipe.parallelism.tp),
        ub_cfgs=profile(recipe),
        bootstrap_backend="nccl",
        **_quantization(recipe, base),
    )
    return True


def stop() -> None:
    """Frees what ``start`` registered; before the process groups are destroyed."""
    from transformer_engine.pytorch.module import base

    base.destroy_ub()


def shape(recipe: Recipe) -> list[int]:
    """Tokens of a micro-batch on a context-parallel rank, and the hidden size."""
    batch, par = recipe.batch, recipe.parallelism
    return [batch.seq_length * int(batch.mbs) // int(par.cp), recipe.model.hidden_size]


def profile(recipe: Recipe) -> dict[str, Any]:
    """``overlap.tp_comm_cfg``: layer name (``qkv_fprop``, …) -> its settings; empty = Transformer Engine's own."""
    path = recipe.overlap.tp_comm_cfg
    if path is None:
        return {}
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigFailure(f"overlap.tp_comm_cfg {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict) or not all(isinstance(value, dict) for value in found.values()):
        raise ConfigFailure(f"overlap.tp_comm_cfg {path} must map layer names to settings")
    return found


def quantization_modes(recipe: Recipe) -> list[str]:
    """One set of buffers for each precision that linear layers run in: ``FP8``, ``NONE`` (BF16)."""
    precision = recipe.precision
    if precision.fp8 == "none":
        return ["NONE"]
    kept = precision.bf16_layers.first or precision.bf16_layers.last
    return ["FP8", "NONE"] if kept else ["FP8"]


def _quantization(recipe: Recipe, base: Any) -> dict[str, Any]:
    """The argument that the installed Transformer Engine has for it (a list since 2.7)."""
    if "quantization_modes" in inspect.signature(base.initialize_ub).parameters:
        modes = base.UserBufferQuantizationMode
        return {"quantization_modes": [getattr(modes, name) for name in quantization_modes(recipe)]}
    return {"use_fp8": recipe.precision.fp8 != "none"}
