"""Looks at the operands of every GEMM that FP8 would compute: input, weight and output gradient of linear layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from colosseum.runtime.fp8.casting import Numbers
from colosseum.runtime.model import unwrapped

LINEAR = re.compile(r"decoder\.layers\.\d+\.(self_attention\.linear_(qkv|proj)|mlp\.linear_fc[12])")


@contextmanager
def observed(chunks: Iterable[Any], *, once: bool = False) -> Iterator[dict[str, Numbers]]:
    """While it is open, each forward and backward pass adds to the result, by ``LAYER.MODULE.KIND``.

    Layers are counted from 1 over the whole model. A forward pass that is computed again for the backward pass
    counts once. A weight is looked at in the first pass.

    Args:
        once: only the first micro-batch.
    """
    found: dict[str, Numbers] = {}
    hooks = []
    for chunk in chunks:
        gpt = unwrapped(chunk)
        for name, module in gpt.named_modules():
            if LINEAR.fullmatch(name):
                layer = gpt.decoder.layers[int(name.split(".")[2])].layer_number
                hooks.append(module.register_forward_hook(_hook(found, f"{layer}.{name.split('.')[-1]}", once)))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _hook(found: dict[str, Numbers], name: str, once: bool) -> Any:
    def see(kind: str, tensor: torch.Tensor) -> None:
        found.setdefault(f"{name}.{kind}", Numbers()).see(tensor)

    def hook(module: Any, inputs: tuple[torch.Tensor, ...], outputs: Any) -> None:
        if not torch.is_grad_enabled() or (once and f"{name}.input" in found):
            return
        see("input", _operand(module, inputs[0].detach()))
        if f"{name}.weight" not in found:
            see("weight", module.weight)
        output = outputs[0] if isinstance(outputs, tuple) else outputs
        # The hook of a tensor runs once its whole gradient is there.
        output.register_hook(lambda gradient: see("gradient", gradient))

    return hook


def _operand(module: Any, given: torch.Tensor) -> torch.Tensor:
    """What is multiplied with the weight: Transformer Engine's fused layers normalise what they are given."""
    weight = getattr(module, "layer_norm_weight", None)
    if weight is None:
        return given
    weight = weight + 1.0 if module.zero_centered_gamma else weight
    if module.normalization == "RMSNorm":
        return F.rms_norm(given, weight.shape, weight, module.eps)
    return F.layer_norm(given, weight.shape, weight, module.layer_norm_bias, module.eps)
