"""Properties of the rules over changed recipes, against arithmetic and against megatron-core itself."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from colosseum.recipe.load import load
from colosseum.recipe.rules import faults
from colosseum.recipe.rules_base import Facts, divisors, multiples
from colosseum.recipe.schema import Recipe

BASES = (
    "debug/cpt-4k-bf16",
    "colosseum-355b/cpt-16k-expand",
    "colosseum-355b/cpt-fp8",
    "colosseum-355b/dpo",
    "generic",
)
DEGREES = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 10, 12, 16, "auto"])
BOOLS = st.sampled_from([True, False, "auto"])
SMALL = st.one_of(st.none(), st.integers(1, 12))
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "resources.gpus": st.sampled_from([1, 2, 4, 6, 8, 12, 16, 24, 64, 96, 320, 350, 2800, 2880, 3072]),
    "resources.gpus_per_node": st.sampled_from([1, 2, 4, 8]),
    "batch.gbs": st.sampled_from([1, 7, 8, 16, 60, 64, 140, 1260, 2880]),
    "batch.mbs": st.sampled_from([1, 2, 3, 4, "auto"]),
    "batch.seq_length": st.sampled_from([1, 100, 128, 256, 1000, 4096, 16384]),
    "model.num_layers": st.integers(1, 100),
    "model.hidden_size": st.sampled_from([100, 128, 4096, 18432]),
    "model.num_attention_heads": st.sampled_from([1, 4, 6, 32, 96]),
    "model.num_query_groups": st.sampled_from([None, 1, 2, 4, 5, 8]),
    "model.kv_channels": st.sampled_from([None, 5, 32, 128]),
    "model.ffn_hidden_size": st.sampled_from([None, 100, 512, 73728]),
    "model.position_embedding_type": st.sampled_from(["rope", "learned_absolute"]),
    "model.rotary_percent": st.floats(0, 1),
    "model.rope_scaling": st.sampled_from([None, 8.0]),
    "model.max_position_embeddings": st.sampled_from([None, 128, 4096]),
    "parallelism.tp": DEGREES,
    "parallelism.pp": DEGREES,
    "parallelism.vpp": DEGREES,
    "parallelism.cp": DEGREES,
    "parallelism.sequence_parallel": BOOLS,
    "parallelism.first_stage_layers": SMALL,
    "parallelism.last_stage_layers": SMALL,
    "parallelism.account_for_embedding_in_pipeline_split": BOOLS,
    "parallelism.account_for_loss_in_pipeline_split": BOOLS,
    "parallelism.microbatch_group_size_per_vp_stage": SMALL,
    "recompute.granularity": st.sampled_from(["none", "selective", "full", "auto"]),
    "recompute.method": st.sampled_from([None, "uniform", "block"]),
    "recompute.num_layers": SMALL,
    "recompute.modules": st.sampled_from([["core_attn"], ["layernorm"], ["layernorm", "mlp"]]),
    "precision.dtype": st.sampled_from(["bf16", "fp32"]),
    "precision.fp8": st.sampled_from(["none", "delayed", "tensorwise", "blockwise"]),
    "precision.fp8_params": st.booleans(),
    "precision.bf16_layers": st.fixed_dictionaries({"first": st.integers(0, 12), "last": st.integers(0, 2)}),
    "precision.grad_reduce_dtype": st.sampled_from(["bf16", "fp32", "auto"]),
    "precision.moments_dtype": st.sampled_from(["bf16", "fp32"]),
    "optimizer.distributed": BOOLS,
    "optimizer.warmup_steps": st.sampled_from([0, 10, 10**6]),
    "optimizer.min_lr": st.sampled_from([0.0, 1e-3, 1.0]),
    "train.steps": st.sampled_from([None, 1, 100]),
    "train.tokens": st.sampled_from([None, 1, 10**12]),
    "train.epochs": st.sampled_from([None, 1]),
    "train.deterministic": st.booleans(),
    "overlap.tp_comm": BOOLS,
    "overlap.p2p": BOOLS,
    "overlap.batch_p2p": BOOLS,
    "overlap.grad_reduce": BOOLS,
    "overlap.param_gather": BOOLS,
    "overlap.defer_embedding_wgrad_compute": st.booleans(),
    "fusion.cross_entropy": st.booleans(),
    "fusion.rope": st.booleans(),
    "fusion.gradient_accumulation": st.booleans(),
    "data.split": st.sampled_from(["99,1,0", "1,0,0", "0,1,0", "a", "1,2", "1e3,0,0"]),
    "data.train": st.sampled_from([None, "t.jsonl"]),
    "data.train_samples": st.sampled_from([None, 1, 1000]),
    "task.logprob_mbs": SMALL,
    "checkpoint.from": st.sampled_from(["none", "/a", "run:x", "run:x@3", "stage:a"]),
    "checkpoint.load": st.sampled_from([["weights"], [], ["optimizer"], ["weights", "weights"]]),
    "checkpoint.keep_every": st.sampled_from([None, 1, 250, 1000]),
    "resources.vboost": st.booleans(),
}
QUICK = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@cache
def base(name: str) -> Recipe:
    return load(name).recipe


def put(data: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for part in sections:
        data = data[part]
    data[last] = value


@st.composite
def recipes(draw: st.DrawFn, most: int = 12) -> Recipe:
    """A shipped recipe with up to ``most`` fields changed."""
    name = draw(st.sampled_from(BASES))
    data = base(name).as_data()
    if draw(st.booleans()):
        data["hardware"] = base(draw(st.sampled_from(BASES))).as_data()["hardware"]
    for path in draw(st.lists(st.sampled_from(sorted(CHANGES)), max_size=most, unique=True)):
        if path != "task.logprob_mbs" or data["task"]["kind"] == "dpo":
            put(data, path, draw(CHANGES[path]))
    return Recipe.from_data(data)


@QUICK
@given(recipes())
def test_every_nearest_value_removes_its_fault(recipe: Recipe) -> None:
    found = faults(recipe)
    for fault in found:
        for value in fault.nearest:
            data = recipe.as_data()
            put(data, fault.path, value)
            changed = faults(Recipe.from_data(data))  # raises if the value is not of the field's type
            assert (fault.path, fault.rule) not in {(f.path, f.rule) for f in changed}
            assert fault.value != value


@QUICK
@given(recipes(most=4))
def test_a_recipe_without_faults_comes_out_even(recipe: Recipe) -> None:
    par, batch, model = recipe.parallelism, recipe.batch, recipe.model
    numbers = (par.tp, par.pp, par.cp, par.vpp, batch.mbs)
    assume("auto" not in numbers and not faults(recipe))
    tp, pp, cp, vpp, mbs = (int(n) for n in numbers)
    dp, rest = divmod(recipe.resources.gpus, tp * pp * cp)
    assert rest == 0 and dp >= 1
    microbatches, rest = divmod(batch.gbs, dp * mbs)
    assert rest == 0 and microbatches >= 1
    assert model.num_attention_heads % tp == 0 and model.ffn % tp == 0
    assert cp == 1 or batch.seq_length % (2 * cp) == 0
    if vpp > 1:
        assert pp > 1 and microbatches >= pp
        assert par.microbatch_group_size_per_vp_stage or microbatches % pp == 0
    stages = Facts.of(recipe).stage_layers
    if stages is not None and len(stages) == 3:
        assert stages[0] + (pp - 2) * stages[1] + stages[2] == model.num_layers
    elif stages is not None:
        assert sum(stages) == model.num_layers


def megatron_config(recipe: Recipe) -> Any:
    """megatron-core's own configuration of a recipe's layout; raises where megatron-core refuses."""
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    par, model, rec, over = recipe.parallelism, recipe.model, recipe.recompute, recipe.overlap
    assert par.tp != "auto" and par.pp != "auto" and par.cp != "auto" and par.vpp != "auto"
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.query_groups,
        kv_channels=model.head_dim,
        tensor_model_parallel_size=par.tp,
        pipeline_model_parallel_size=par.pp,
        virtual_pipeline_model_parallel_size=None if par.vpp == 1 else par.vpp,
        context_parallel_size=par.cp,
        sequence_parallel=bool(Facts.of(recipe).sequence_parallel),
        pipeline_dtype=torch.bfloat16,
        bf16=True,
        params_dtype=torch.bfloat16,
        num_layers_in_first_pipeline_stage=par.first_stage_layers,
        num_layers_in_last_pipeline_stage=par.last_stage_layers,
        account_for_embedding_in_pipeline_split=par.account_for_embedding_in_pipeline_split is True,
        account_for_loss_in_pipeline_split=par.account_for_loss_in_pipeline_split is True,
        recompute_granularity=rec.granularity if rec.granularity in ("selective", "full") else None,
        recompute_method=rec.method,
        recompute_num_layers=rec.num_layers,
        recompute_modules=list(rec.modules),
        fp8=None if recipe.precision.fp8 == "none" else recipe.precision.fp8_format,
        fp8_recipe=recipe.precision.fp8 if recipe.precision.fp8 != "none" else "delayed",
        fp8_param=recipe.precision.fp8_params,
        first_last_layers_bf16=recipe.precision.bf16_layers.first + recipe.precision.bf16_layers.last > 0,
        num_layers_at_start_in_bf16=recipe.precision.bf16_layers.first,
        num_layers_at_end_in_bf16=recipe.precision.bf16_layers.last,
        defer_embedding_wgrad_compute=over.defer_embedding_wgrad_compute,
        wgrad_deferral_limit=over.wgrad_deferral_limit,
        gradient_accumulation_fusion=recipe.fusion.gradient_accumulation,
        bias_activation_fusion=False,
    )


@st.composite
def layouts(draw: st.DrawFn) -> Recipe:
    """Layouts that are often legal: divisors of each other, GPUs and batch to match."""
    data = base("generic").as_data()
    tp, pp, cp, dp = (draw(st.sampled_from([1, 2, 4])) for _ in range(4))
    vpp = draw(st.sampled_from([1, 1, 2, 3])) if pp > 1 else 1
    changes: dict[str, Any] = {
        "parallelism.tp": tp,
        "parallelism.pp": pp,
        "parallelism.cp": cp,
        "parallelism.vpp": vpp,
        "resources.gpus": tp * pp * cp * dp,
        "resources.gpus_per_node": 64,
        "batch.gbs": dp * pp * draw(st.integers(1, 3)),
        "model.num_layers": draw(st.integers(1, 3)) * pp * vpp + draw(st.integers(-2, 2)),
        "recompute.granularity": draw(st.sampled_from(["none", "selective", "full", "full"])),
        "precision.fp8_params": False,
    }
    if changes["recompute.granularity"] == "full" or draw(st.integers(0, 9)) == 0:
        changes["recompute.method"] = draw(st.sampled_from(["uniform", "block"]))
        changes["recompute.num_layers"] = draw(st.integers(1, 3))
    for name in ("first", "last"):
        if draw(st.integers(0, 3)) == 0:
            changes[f"parallelism.{name}_stage_layers"] = draw(st.integers(1, 4))
    for name in ("embedding", "loss"):
        changes[f"parallelism.account_for_{name}_in_pipeline_split"] = draw(st.integers(0, 3)) == 0
    if draw(st.integers(0, 3)) == 0:
        changes["precision.fp8"] = draw(st.sampled_from(["delayed", "tensorwise"]))
        changes["precision.bf16_layers"] = {"first": draw(st.integers(0, 2)), "last": draw(st.integers(0, 1))}
    changes["model.num_layers"] = max(1, changes["model.num_layers"])
    for path, value in changes.items():
        put(data, path, value)
    return Recipe.from_data(data)


@settings(QUICK, max_examples=400)
@given(layouts())
def test_megatron_core_takes_what_has_no_faults_and_we_refuse_what_it_refuses(recipe: Recipe) -> None:
    pytest.importorskip("megatron.core")
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    par, rec = recipe.parallelism, recipe.recompute
    found = faults(recipe)
    try:
        config = megatron_config(recipe)
        chunks = range(int(par.vpp)) if par.vpp != 1 else (None,)
        layers = [get_num_layers_to_build(config, vp_stage=v, pp_rank=r) for r in range(int(par.pp)) for v in chunks]
    except (ValueError, AssertionError) as error:
        assert found, f"megatron-core refuses: {error}"
        return
    if found:
        return  # we refuse more: what fails only when it runs
    assert sum(layers) == recipe.model.num_layers
    if rec.granularity == "full" and rec.method == "uniform":
        assert all(n % int(rec.num_layers or 0) == 0 for n in layers)
    stages = Facts.of(recipe).stage_layers
    assert stages is not None
    assert stages[0] == sum(layers[: int(par.vpp)]) and stages[-1] == sum(layers[-int(par.vpp) :])


@given(st.integers(1, 10**15), st.integers(1, 10**15))
@example(3072, 320)
def test_candidates_are_what_they_say(near: int, unit: int) -> None:
    for value, _ in zip(multiples(near, unit), range(6), strict=False):
        assert value % unit == 0 and 1 <= value <= 10**15
    for value, _ in zip(divisors(near, unit), range(6), strict=False):
        assert near % value == 0


@settings(QUICK, max_examples=100)
@given(recipes(most=30))
def test_rules_are_quick(recipe: Recipe) -> None:
    import time

    start = time.perf_counter()
    faults(recipe)
    assert time.perf_counter() - start < 1.0
