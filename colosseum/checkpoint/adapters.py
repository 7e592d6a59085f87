"""LoRA adapters of a checkpoint: their names, and the weights with them merged in."""

from __future__ import annotations

from typing import Any

from colosseum.checkpoint.torchdist import Tensors
from colosseum.recipe.tasks import Lora

SUFFIX, A, B = "_lora", "a", "b"
"""``….linear_qkv.weight`` has its adapter in ``….linear_qkv_lora.a`` and ``….linear_qkv_lora.b``."""


class MergedTensors:
    """A checkpoint's tensors as `Tensors` gives them, each weight with alpha / rank * B A added (in FP32)."""

    def __init__(self, tensors: Tensors, lora: Lora | None) -> None:
        self._tensors, self._lora = tensors, lora

    def has(self, key: str, layer: int | None = None) -> bool:
        return self._tensors.has(key, layer)

    def get(self, key: str, layer: int | None = None) -> Any:
        weight = self._tensors.get(key, layer)
        head = key.removesuffix(".weight")
        if self._lora is None or head == key or not head.endswith(self._lora.targets):
            return weight
        a, b = (self._tensors.get(f"{head}{SUFFIX}.{half}", layer).float() for half in (A, B))
        return (weight.float() + self._lora.alpha / self._lora.rank * (b @ a)).to(weight.dtype)
