"""No engine drops a field of pretraining: another value changes what is launched or told, or is refused."""

from __future__ import annotations

from typing import Any

import pytest

from colosseum.engines.registry import engine_of
from colosseum.planning.resolve import resolve
from colosseum.recipe.schema import Recipe
from tests.engines.conftest import Resolved

EVERYTHING_ON = (
    *("precision=fp8-delayed", "parallelism.tp=2", "parallelism.pp=2", "parallelism.vpp=2", "fusion.rope=false"),
    *("recompute.granularity=full", "recompute.method=block", "recompute.num_layers=2", "train.tokens=null"),
    *("tokenizer.kind=tokenizer_json", "tokenizer.path=/t/tokenizer.json", "data.eod_mask_loss=true"),
    *("data.blend=[{path: /d/a, weight: 1}]", "data.cache_dir=/c", "train.steps=5000"),
    *("overlap.defer_embedding_wgrad_compute=true", "model.max_position_embeddings=8192"),
    "optimizer.decay_steps=4000",
)
TEXTS = {
    "normalization": "LayerNorm",
    "activation_func": "gelu",
    "position_embedding_type": "learned_absolute",
    "path": "/u/tokenizer.json",
    "cache_dir": "/other",
    "split": "90,5,5",
    "fp8": "tensorwise",
    "fp8_format": "e4m3",
    "fp8_amax_compute_algo": "most_recent",
    "grad_reduce_dtype": "fp32",
    "moments_dtype": "bf16",
    "granularity": "none",
    "method": "uniform",
    "lr_schedule": "linear",
    "mode": "off",
    "hang_timeout": "33m",
}
"""Another value of fields that are text; numbers and switches get one by themselves."""
ONLY_OURS = "fusion.optimizer_step"
"""The same mathematics in one pass of our runtime."""
SAME = {
    "megatron-lm": {ONLY_OURS},
    "nemo1": {ONLY_OURS, "stability.hang_timeout"},  # a note says so
    "nemo2": {ONLY_OURS},
    "bridge": {ONLY_OURS, "model.max_position_embeddings"},  # with RoPE it changes nothing
}
SECTIONS = (
    "model tokenizer data batch parallelism recompute precision optimizer train overlap fusion checkpoint stability"
)


def _other(name: str, value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value * 2 + 1 if isinstance(value, int) else value * 0.75 + 0.001
    return TEXTS.get(name) if isinstance(value, str) else None


def _launched(recipe: Recipe, plan: Any) -> object:
    engine = engine_of(recipe.engine)
    if faults := engine.faults(recipe):
        return [fault.path for fault in faults]
    return engine.render(recipe, plan), engine.notes(recipe)


@pytest.mark.parametrize("engine", SAME)
def test_another_value_is_not_dropped(engine: str, resolved: Resolved) -> None:
    recipe = resolved("generic", f"engine={engine}", *EVERYTHING_ON)
    plan = resolve(recipe)
    before, dropped, tried = _launched(recipe, plan), set(), 0
    for section in SECTIONS.split():
        part = getattr(recipe, section)
        for name in type(part).model_fields:
            if (value := _other(name, getattr(part, name))) is None:
                continue
            tried += 1
            changed = recipe.model_copy(update={section: part.model_copy(update={name: value})})
            if _launched(changed, plan) == before:
                dropped.add(f"{section}.{name}")
    assert tried > 70
    assert dropped == SAME[engine]
