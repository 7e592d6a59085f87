"""A shrunk recipe breaks no rule, keeps what a rehearsal is for, and accounts for what it changed."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from colosseum.planning.resolve import apply_layout, resolve
from colosseum.planning.shrink import SAVE_AT, STEPS, Shrunk, shrink
from colosseum.recipe import rules
from colosseum.recipe.load import load, shipped_recipes
from colosseum.recipe.rules_base import Facts
from colosseum.recipe.schema import Recipe

CPT = [name for name in shipped_recipes() if load(name).recipe.task.kind == "cpt"]
HOST = load("debug/cpt-4k-bf16", ["cluster=local"]).recipe


def shrunk(recipe: Recipe, ranks: int) -> Shrunk:
    return shrink(recipe, ranks, hardware=HOST.hardware, cluster=HOST.cluster)


def sizes(recipe: Recipe) -> dict[str, int]:
    par = recipe.parallelism
    found = {"tp": int(par.tp), "pp": int(par.pp), "cp": int(par.cp)}
    return {**found, "dp": recipe.resources.gpus // prod(found.values())}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", CPT)
def test_shipped_recipes_shrink_to_legal_ones(name: str, ranks: int) -> None:
    full = load(name).recipe
    small = shrunk(apply_layout(full, resolve(full).layout), ranks)
    for recipe in (small.recipe, small.other_layout):
        assert rules.faults(recipe) == []
        assert recipe.resources.gpus == prod(sizes(recipe).values()) <= ranks
    assert sizes(small.recipe) != sizes(small.other_layout)
    assert small.recipe.model == small.other_layout.model, "one checkpoint serves both"
    assert small.recipe.batch == small.other_layout.batch, "the sample order is the same"


@pytest.mark.parametrize("stage", ["cpt-4k-bf16", "cpt-16k-expand", "cpt-fp8"])
def test_the_355b_stages_keep_two_dimensions_at_a_time_on_four_ranks(stage: str) -> None:
    small = shrunk(load(f"colosseum-355b/{stage}").recipe, 4)
    first, second = sizes(small.recipe), sizes(small.other_layout)
    assert (first["tp"], first["pp"], small.recipe.parallelism.vpp) == (2, 2, 2)
    assert sum(size > 1 for size in second.values()) == 2
    assert second["pp"] == 1


def test_every_dimension_of_the_16k_stage_is_tried_on_four_ranks() -> None:
    small = shrunk(load("colosseum-355b/cpt-16k-expand").recipe, 4)
    tried = {n for recipe in (small.recipe, small.other_layout) for n, size in sizes(recipe).items() if size > 1}
    assert tried == {"tp", "pp", "cp", "dp"}


def test_the_fp8_stage_says_what_a_cpu_cannot_do() -> None:
    small = shrunk(load("colosseum-355b/cpt-fp8").recipe, 4)
    dropped = {d.what for d in small.decisions if d.verdict == "dropped"}
    assert "fp8" in dropped
    assert {"fusion.cross_entropy", "fusion.rope", "vboost"} <= dropped
    kept = {d.what: d.after for d in small.decisions if d.verdict == "kept"}
    assert kept["dtype"] == "bf16"
    assert kept["checkpoint.format"] == "torch_dist"


def test_the_schedule_keeps_its_shape() -> None:
    full = load("colosseum-355b/cpt-4k-bf16").recipe
    small = shrunk(full, 4).recipe
    assert small.optimizer.min_lr / small.optimizer.lr == pytest.approx(full.optimizer.min_lr / full.optimizer.lr)
    assert small.optimizer.lr_schedule == full.optimizer.lr_schedule
    assert small.train.steps == STEPS
    assert small.checkpoint.every_steps == small.train.val_every_steps == SAVE_AT


POWERS = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=150, deadline=None)
@given(
    tp=POWERS,
    cp=POWERS,
    pp=st.sampled_from([1, 2, 3, 4, 8]),
    vpp=st.sampled_from([1, 2, 4]),
    dp=st.integers(1, 12),
    mbs=st.sampled_from([1, 2, 4]),
    groups=st.sampled_from([8, 64]),
    uneven=st.sampled_from(["", "first", "last", "both", "embedding", "loss", "accounted"]),
    recompute=st.sampled_from([None, "uniform", "block"]),
    ranks=st.integers(2, 8),
)
def test_any_legal_layout_shrinks_to_legal_ones(
    tp: int,
    cp: int,
    pp: int,
    vpp: int,
    dp: int,
    mbs: int,
    groups: int,
    uneven: str,
    recompute: str | None,
    ranks: int,
) -> None:
    vpp = vpp if pp > 1 else 1
    uneven = uneven if pp > 2 else ""
    first, last = uneven in ("first", "both"), uneven in ("last", "both")
    embedding, loss = uneven in ("embedding", "accounted"), uneven in ("loss", "accounted")
    layers = 2 * vpp * pp - vpp * (first + last) - embedding - loss
    data = load("generic").recipe.as_data()
    data["model"].update(num_layers=layers, num_attention_heads=64, num_query_groups=groups, hidden_size=4096)
    data["parallelism"].update(
        tp=tp,
        pp=pp,
        cp=cp,
        vpp=vpp,
        sequence_parallel=tp > 1,
        first_stage_layers=vpp if first else None,
        last_stage_layers=vpp if last else None,
        account_for_embedding_in_pipeline_split=embedding,
        account_for_loss_in_pipeline_split=loss,
    )
    if recompute:
        data["recompute"].update(granularity="full", method=recompute, num_layers=1)
    data["batch"].update(gbs=dp * mbs * pp * 2, mbs=mbs)
    data["resources"].update(gpus=tp * pp * cp * dp, gpus_per_node=1)
    full = Recipe.from_data(data)
    assume(not rules.faults(full))
    small = shrunk(full, ranks)
    for recipe in (small.recipe, small.other_layout):
        assert rules.faults(recipe) == []
    assert sizes(small.recipe) != sizes(small.other_layout)
    wide = {name for name, size in sizes(full).items() if size > 1}
    told = {d.what for d in small.decisions}
    assert wide <= told


def test_both_layouts_of_a_rehearsal_save_the_same_kind_of_optimizer() -> None:
    """A recipe of one rank resolves auto to false, which four ranks took as an optimizer that is not sharded."""
    full = apply_layout(HOST, resolve(HOST).layout)
    assert full.resources.gpus == 1
    assert full.optimizer.distributed is False
    small = shrunk(full, 4)
    kinds = {Facts.of(recipe).sharded_optimizer for recipe in (full, small.recipe, small.other_layout)}
    assert kinds == {True}
