"""LoRA: low-rank adapters beside frozen linear layers (Hu et al. 2021, arXiv:2106.09685), y = W x + alpha / rank B A x.

A is ``[rank, in]``, drawn; B is ``[out, rank]``, zero at first. Tensor parallelism cuts the adapter as it cuts the
layer: B by rows where W is cut by rows (qkv, fc1), A by columns where W is cut by columns (proj, fc2). The other half
is whole on every rank, so that only ``rank`` numbers per token are communicated.

Legend: S sequence (of this rank), B batch, R rank of the adapter.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor

from colosseum.checkpoint.adapters import SUFFIX, A, B
from colosseum.recipe.tasks import Lora

PARENTS = {"linear_qkv": "self_attention", "linear_proj": "self_attention", "linear_fc1": "mlp", "linear_fc2": "mlp"}
COLUMN_PARALLEL = ("linear_qkv", "linear_fc1")
"""Layers whose outputs are spread over tensor-parallel ranks; of the others the inputs are."""


class Adapter(torch.nn.Module):  # type: ignore[misc]
    """One layer's A and B on this rank."""

    def __init__(self, config: Any, lora: Lora, linear: Any, target: str, seed: str) -> None:
        super().__init__()
        self.enabled = True
        self.scale = lora.alpha / lora.rank
        self._seed, self._config, self._gated = seed, config, config.gated_linear_unit and target == "linear_fc1"
        self.column_parallel = target in COLUMN_PARALLEL
        outputs, inputs = linear.weight.shape
        options = {"dtype": config.params_dtype, "device": linear.weight.device}
        self.a = torch.nn.Parameter(torch.empty(lora.rank, inputs, **options))
        self.b = torch.nn.Parameter(torch.empty(outputs, lora.rank, **options))
        cut, whole, axis = (self.b, self.a, 0) if self.column_parallel else (self.a, self.b, 1)
        set_tensor_model_parallel_attributes(cut, True, axis, 1)
        # Each rank saw its part of the sequence: megatron-core adds the gradients up where it sees this mark.
        whole.sequence_parallel = config.sequence_parallel
        self.reset()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def reset(self) -> None:
        """As at the start: B is zero, A the same numbers under every layout."""
        ranks, rank = _tp()
        inputs = self.a.size(1) * (1 if self.column_parallel else ranks)
        generator = torch.Generator().manual_seed(int(hashlib.sha256(self._seed.encode()).hexdigest()[:15], 16))
        drawn = (torch.rand(self.a.size(0), inputs, generator=generator) * 2 - 1) / math.sqrt(inputs)
        self.a.copy_(drawn if self.column_parallel else drawn.chunk(ranks, dim=1)[rank])
        self.b.zero_()

    def forward(self, x_SBI: Tensor) -> Tensor:
        """What is added to the layer's output, before its bias."""
        hidden_SBR = F.linear(x_SBI, self.a) * self.scale
        sequence_parallel = self._config.sequence_parallel
        if self.column_parallel:
            spread = gather_from_sequence_parallel_region if sequence_parallel else copy_to_tensor_model_parallel_region
        elif sequence_parallel:
            spread = reduce_scatter_to_sequence_parallel_region
        else:
            spread = reduce_from_tensor_model_parallel_region
        return F.linear(spread(hidden_SBR), self.b)

    def product(self) -> Tensor:
        """This rank's part of alpha / rank * B A, in FP32."""
        return self.scale * (self.b.float() @ self.a.float())

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        """For megatron-core's checkpoints."""
        cut = {B: 0} if self.column_parallel else {A: 1}
        state = make_sharded_tensors_for_checkpoint({A: self.a, B: self.b}, prefix, cut, sharded_offsets)
        if self._gated:
            # Each rank has rows of both halves, gate and value, as of fc1 itself.
            state[prefix + B] = apply_swiglu_sharded_factory(state[prefix + B], sharded_offsets)
        return dict(state)


def attach(gpt: Any, lora: Lora, seed: int) -> None:
    """Freezes the model and puts adapters beside its layers."""
    for parameter in gpt.parameters():
        parameter.requires_grad_(False)
    for adapter, linear in _add(gpt, lora, seed):
        if hasattr(linear, "return_layernorm_output"):
            # Transformer Engine has the norm in the layer before: the adapter's input is the norm's output.
            linear.return_layernorm_output = True
        linear.register_forward_hook(_hook(adapter))
    if gpt.pre_process:
        # Recomputation gives gradients only to what a layer's input asks for, and the embedding is frozen.
        gpt.embedding.register_forward_hook(_ask_for_gradient)


def _add(gpt: Any, lora: Lora, seed: int) -> list[tuple[Adapter, Any]]:
    found = []
    for layer in gpt.decoder.layers:
        for target in lora.targets:
            parent = getattr(layer, PARENTS[target])
            linear = getattr(parent, target)
            adapter = Adapter(gpt.config, lora, linear, target, f"{seed} {layer.layer_number} {target}")
            parent.add_module(target + SUFFIX, adapter)
            found.append((adapter, linear))
    return found


def _hook(adapter: Adapter) -> Any:
    def hook(_: Any, inputs: tuple[Tensor, ...], output: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
        x = inputs[0]
        if len(output) == 3:
            output, bias, x = output
        else:
            output, bias = output
            if isinstance(output, tuple):
                output, x = output
        return (output + adapter(x) if adapter.enabled else output), bias

    return hook


def _ask_for_gradient(_: Any, __: Any, output: Tensor) -> Tensor:
    return output.requires_grad_() if torch.is_grad_enabled() and not output.requires_grad else output


def _adapters(gpts: list[Any]) -> list[Adapter]:
    return [module for gpt in gpts for module in gpt.modules() if isinstance(module, Adapter)]


@contextmanager
def switched_off(gpts: list[Any]) -> Iterator[None]:
    """The model as it was before training: DPO's reference policy without a second copy."""
    adapters = _adapters(gpts)
    for adapter in adapters:
        adapter.enabled = False
    try:
        yield
    finally:
        for adapter in adapters:
            adapter.enabled = True


@contextmanager
def replaced(gpts: list[Any], stored: Lora | None) -> Iterator[None]:
    """While a checkpoint with these adapters (None: without any) is loaded for its weights alone.

    At the end the loaded adapters are merged into the weights, and the model's own are reset.
    """
    own = [(parent, name, adapter) for gpt in gpts for parent, name, adapter in _places(gpt)]
    for parent, name, _ in own:
        del parent._modules[name]
    loaded = [pair for gpt in gpts for pair in (_add(gpt, stored, 0) if stored else [])]
    try:
        yield
        with torch.no_grad():
            for adapter, linear in loaded:
                linear.weight.copy_(linear.weight.float() + adapter.product())
    finally:
        for gpt in gpts:
            for parent, name, _ in _places(gpt):
                del parent._modules[name]
        for parent, name, adapter in own:
            parent.add_module(name, adapter)
            adapter.reset()


def _places(gpt: Any) -> list[tuple[Any, str, Adapter]]:
    return [
        (parent, name, child)
        for parent in list(gpt.modules())
        for name, child in list(parent.named_children())
        if isinstance(child, Adapter)
    ]


def _tp() -> tuple[int, int]:
    return parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
