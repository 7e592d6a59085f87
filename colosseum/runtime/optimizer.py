"""megatron-core's DistributedDataParallel, Adam and learning-rate schedule for a Recipe, and three mends for a CPU."""

from __future__ import annotations

import functools
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from colosseum.recipe import derived
from colosseum.recipe.rules_base import Facts
from colosseum.recipe.schema import Recipe
from colosseum.runtime import device
from colosseum.runtime.model import DTYPES


def is_sharded(recipe: Recipe) -> bool:
    """Whether the distributed optimizer is used (`Facts.sharded_optimizer`)."""
    return bool(Facts.of(recipe).sharded_optimizer)


def wrap(recipe: Recipe, config: Any, chunks: list[Any]) -> list[Any]:
    """Model chunks in DistributedDataParallel, their first values those of data-parallel rank 0."""
    overlap = recipe.overlap
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=recipe.precision.grad_reduce_dtype == "fp32",
        overlap_grad_reduce=bool(overlap.grad_reduce),
        overlap_param_gather=bool(overlap.param_gather),
        use_distributed_optimizer=is_sharded(recipe),
        fp8_param_gather=recipe.precision.fp8_params,
    )
    # Only the first chunk of a pipeline rank cuts its gradients in buckets: the others reduce while it computes.
    wrapped = [DistributedDataParallel(config, ddp, chunk, disable_bucketing=i > 0) for i, chunk in enumerate(chunks)]
    for chunk in wrapped:
        chunk.broadcast_params()
    return wrapped


def build(recipe: Recipe, config: Any, model: list[Any]) -> Any:
    """The optimizer; also hangs the gradient hooks of overlap and pipeline into ``config``."""
    opt, precision = recipe.optimizer, recipe.precision
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer=opt.name,
            lr=opt.lr,
            min_lr=opt.min_lr,
            weight_decay=opt.weight_decay,
            adam_beta1=opt.beta1,
            adam_beta2=opt.beta2,
            adam_eps=opt.eps,
            clip_grad=opt.clip_grad,
            bf16=precision.dtype == "bf16",
            params_dtype=DTYPES[precision.dtype],
            use_distributed_optimizer=is_sharded(recipe),
            overlap_param_gather=bool(recipe.overlap.param_gather),
            fp8_recipe=None if precision.fp8 == "none" else precision.fp8,
            **_precision_aware(recipe),
        ),
        model,
    )
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    if recipe.overlap.grad_reduce:
        config.no_sync_func = _one_or_all([chunk.no_sync for chunk in model])
    if recipe.overlap.param_gather:
        config.param_sync_func = _one_or_all([chunk.start_param_sync for chunk in model])
    _mend_adam_loading()
    return optimizer


def _precision_aware(recipe: Recipe) -> dict[str, Any]:
    """Transformer Engine's Adam that keeps moments in their own dtype and writes FP8 weights itself.

    Without it FP8 weights are cast one tensor at a time after the step: 369 ms against 58 for 4.5B parameters (H200).
    """
    precision = recipe.precision
    low_moments = precision.moments_dtype == "bf16"
    writes_fp8 = bool(precision.fp8_params) and device.is_cuda() and is_sharded(recipe)
    if not (low_moments or writes_fp8):
        return {}
    moments = torch.bfloat16 if low_moments else torch.float32
    return {
        "use_precision_aware_optimizer": True,
        "exp_avg_dtype": moments,
        "exp_avg_sq_dtype": moments,
        # With 16-bit remainders a checkpoint would hold no FP32 weights: FP8, and any other optimizer, read garbage.
        "store_param_remainders": False,
    }


def _one_or_all(functions: list[Any]) -> Any:
    return functions[0] if len(functions) == 1 else functions


def schedule(recipe: Recipe, optimizer: Any, total_steps: int) -> Any:
    """megatron-core's schedule, counted in samples; a resumed run follows its own recipe's rates, not the old one's."""
    opt, gbs = recipe.optimizer, recipe.batch.gbs
    wsd = opt.lr_schedule == "wsd"
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=opt.lr,
        min_lr=opt.min_lr,
        lr_warmup_steps=derived.warmup_steps(recipe) * gbs,
        lr_decay_steps=(opt.decay_steps or total_steps) * gbs,
        lr_decay_style="WSD" if wsd else opt.lr_schedule,
        wsd_decay_steps=(opt.wsd_decay_steps or 0) * gbs if wsd else None,
        lr_wsd_decay_style=opt.wsd_decay if wsd else None,
        start_wd=opt.weight_decay,
        end_wd=opt.weight_decay,
        wd_incr_steps=total_steps * gbs,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,
    )


def clip(optimizer: Any, clip_grad: float, norm: float) -> None:
    """Scales ready gradients of a norm to ``clip_grad``; 0 leaves them."""
    for part in parts(optimizer):
        parameters = [] if part.is_stub_optimizer else part.get_parameters()
        if parameters and clip_grad > 0:
            decoupled = part.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8
            clip_grad_by_total_norm_fp32(parameters, clip_grad, norm, decoupled)


def ready_norm(optimizer: Any) -> float:
    """Makes the gradients ready for the step; their norm over all ranks, before clipping."""
    optimizer.prepare_grads()
    return float(optimizer.get_grad_norm())


def scale_rates(optimizer: Any, factor: float) -> None:
    """Multiplies the learning rates that the schedule has set for the next step."""
    for group in _groups(optimizer):
        group["lr"] *= factor


def parts(optimizer: Any) -> list[Any]:
    """The optimizers of a chain (one a group of parameters), or the one there is."""
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def rates(optimizer: Any) -> list[dict[str, Any]]:
    """Learning rates, decay and betas of every parameter group: what a recipe says, not what training made."""
    return [
        {key: value for key, value in group.items() if key not in ("params", "step")} for group in _groups(optimizer)
    ]


def restore_rates(optimizer: Any, kept: list[dict[str, Any]]) -> None:
    """Undoes what loading did to the groups: a checkpoint's rates are its own recipe's."""
    for group, values in zip(_groups(optimizer), kept, strict=True):
        group.update(values)


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    return [group for part in parts(optimizer) for group in part.param_groups]


# --- torch's Adam under megatron-core's distributed optimizer (a CPU has no fused one) -----------------------------


def prepare_for_loading(optimizer: Any) -> None:
    """Gives torch's Adam the state of step 0: loading asserts that there is one to overwrite."""
    for inner in _torch_adams(optimizer):
        for group in inner.param_groups:
            for parameter in group["params"]:
                if not inner.state[parameter]:
                    zeros = torch.zeros_like(parameter)
                    inner.state[parameter] = {"step": torch.tensor(0.0), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}


def mend_after_loading(optimizer: Any) -> None:
    """Parts the step counter that loading gave all parameters in common: each would count for all, silently."""
    for inner in _torch_adams(optimizer):
        for state in inner.state.values():
            if "step" in state:
                state["step"] = state["step"].clone()


def _torch_adams(optimizer: Any) -> list[Any]:
    found = (getattr(part, "optimizer", None) for part in parts(optimizer))
    return [inner for inner in found if isinstance(inner, torch.optim.Adam)]


@functools.cache
def _mend_adam_loading() -> None:
    """megatron-core copies every entry of a parameter's state and has none for torch's ``step``."""
    original = DistributedOptimizer._set_main_param_and_optimizer_states

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def set_states(self: Any, model_param: Any, tensors: dict[str, Any]) -> None:
        if not isinstance(self.optimizer, torch.optim.Adam):
            original(self, model_param, tensors)
            return
        group, order = self.model_param_group_index_map[model_param]
        main = self.optimizer.param_groups[group]["params"][order]
        main.copy_(tensors["param"])
        for key, value in self.optimizer.state[main].items():
            if key != "step":
                value.copy_(tensors[key])

    DistributedOptimizer._set_main_param_and_optimizer_states = set_states
