"""The planner's parts against published figures, hand arithmetic and each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from colosseum.engines.registry import engine_of
from colosseum.planning import nearmiss, scaling
from colosseum.planning.constants import calibration_for
from colosseum.planning.cost import gemm_time, step_time
from colosseum.planning.flops import Shape
from colosseum.planning.job import Job
from colosseum.planning.layout import enumerate_layouts, layout_of
from colosseum.planning.memory import in_flight, peak, stages
from colosseum.planning.resolve import alternatives, apply_layout, candidates, free_layout, resolve
from colosseum.planning.search import evaluate
from colosseum.recipe import rules
from colosseum.recipe.load import load, shipped_recipes
from colosseum.recipe.schema import Recipe

H100 = calibration_for("h100-sxm")


def recipe(name: str = "generic", *words: str) -> Recipe:
    return load(name, words, cluster="dgx-h100").recipe


@pytest.mark.parametrize(
    ("group", "billions"),
    [("nemotron4-340b", 341.0), ("llama3-8b", 8.03), ("colosseum-355b", 355.0)],
)
def test_parameters_of_published_models(group: str, billions: float) -> None:
    """arXiv:2406.11704 (331.6e9 and 9.4e9 of embeddings), arXiv:2407.21783, and the case study's 355B."""
    shape = Shape.of(recipe("generic", f"model={group}", "parallelism.tp=8").model, 4096)
    assert shape.params / 1e9 == pytest.approx(billions, rel=2e-3)


def test_a_gemm_is_bound_by_compute_or_by_memory() -> None:
    def time(m: int, n: int, k: int) -> float:
        return float(gemm_time(m, n, k, H100.constants, 989e12, 132, 3.35e12))

    large, thin = 2 * 8192**3, 2 * 16 * 8192 * 8192
    assert 0.5 < large / time(8192, 8192, 8192) / 989e12 < H100.constants.gemm_efficiency_bf16
    assert thin / time(16, 8192, 8192) / 989e12 < 0.05


def test_chunks_in_flight() -> None:
    """1F1B: stage i of 4 holds 4 - i microbatches; 2 chunks a rank: 2 (4 - i - 1) + 4 + 1 of them (schedules.py)."""
    found = enumerate_layouts(recipe("generic", "parallelism.pp=4", "parallelism.vpp=1", "resources.gpus=8"))
    assert [float(in_flight(found, s, found.first)[0]) for s in range(4)] == [32, 24, 16, 8]
    found = enumerate_layouts(recipe("generic", "parallelism.pp=4", "parallelism.vpp=2", "resources.gpus=8"))
    assert [float(in_flight(found, s, found.first)[0]) for s in range(4)] == [44, 36, 28, 20]


@settings(max_examples=25, deadline=None)
@example(gpus=24, layers=30, gbs=96, fp8=False, pick=7217)  # both ends lighter, some layers recomputed
@given(
    gpus=st.sampled_from([8, 16, 24, 64, 96]),
    layers=st.sampled_from([8, 12, 30, 32]),
    gbs=st.sampled_from([16, 48, 96, 128]),
    fp8=st.booleans(),
    pick=st.integers(0, 10**6),
)
def test_the_search_lists_only_legal_layouts(gpus: int, layers: int, gbs: int, fp8: bool, pick: int) -> None:
    """A row of the search, written back into the recipe, breaks no rule and is planned as itself."""
    words = [f"resources.gpus={gpus}", f"model.num_layers={layers}", f"batch.gbs={gbs}", "batch.mbs=auto"]
    words += [f"parallelism.{key}=auto" for key in ("tp", "pp", "cp")]
    free = free_layout(recipe("generic", *words, *(["precision=fp8-delayed"] if fp8 else [])))
    found = candidates(free, H100)
    if not len(found):
        return
    row = pick % len(found)
    layout = layout_of(free, found.layouts, row)
    fixed = apply_layout(free, layout)
    assert rules.faults(fixed) == []
    plan = resolve(fixed, H100)
    assert plan.layout == layout
    assert plan.step_time_s == pytest.approx(found.time_s[row])
    assert plan.memory is not None
    assert plan.memory.device_bytes == pytest.approx(found.device[row])


def test_pinned_fields_are_kept() -> None:
    asked = recipe("generic", "parallelism.tp=4", "parallelism.pp=auto", "batch.mbs=auto", "recompute.granularity=auto")
    layout = resolve(asked).layout
    assert layout.tp == 4
    assert layout.dp * layout.pp == 2


def test_param_gather_overlaps_only_with_grad_reduce() -> None:
    """megatron-core refuses overlap_param_gather without overlap_grad_reduce."""
    assert resolve(recipe()).layout.param_gather_overlap
    assert not resolve(recipe("generic", "overlap.grad_reduce=false")).layout.param_gather_overlap


def test_no_userbuffers_on_a_cpu() -> None:
    cpu = load("debug/cpt-4k-bf16", ["parallelism.tp=2", "resources.gpus=2"], cluster="local").recipe
    assert not resolve(cpu).layout.tp_comm_overlap


def test_one_layout_alone_or_among_many() -> None:
    """Blocks of the search change no figure."""
    asked = free_layout(recipe("generic", "resources.gpus=64"))
    job, many = Job.of(asked), enumerate_layouts(asked)
    found = evaluate(job, many.take(np.resize(np.arange(len(many)), 40_000)), H100.constants)
    one = many.take(slice(5, 6))
    assert found.time_s[5 + len(many)] == pytest.approx(float(step_time(job, one, H100.constants).total_s[0]))
    assert found.device[5] == pytest.approx(float(peak(job, one, H100.constants)[1][0]))


def test_no_stage_is_fuller_than_the_peak() -> None:
    asked = recipe("colosseum-355b/cpt-16k-expand")
    job, lay = Job.of(asked), enumerate_layouts(asked)
    fullest = max(s.total_bytes for s in stages(job, lay, H100.constants))
    assert fullest == pytest.approx(float(peak(job, lay, H100.constants)[1][0]))


def test_340b_on_64_gpus() -> None:
    """At DP 1 the states of 341e9 parameters (2 + 4 + 12 bytes) are 89 GiB a GPU: more than an H100 has."""
    words = ("model=nemotron4-340b", "resources.gpus=64", "parallelism.tp=8", "parallelism.pp=8", "batch.gbs=64")
    plan = resolve(recipe("generic", *words, "precision.grad_reduce_dtype=fp32"))
    assert not plan.fits
    assert plan.memory is not None
    states = [s.weights_bytes + s.gradients_bytes + s.optimizer_bytes for s in plan.memory.stages]
    assert sum(states) * 8 == pytest.approx(341e9 * 18, rel=0.01)
    assert any("smallest job" in line for line in plan.advice)


def test_ways_out_of_an_illegal_job_are_legal() -> None:
    asked = recipe("colosseum-355b/cpt-16k-expand")
    asked = asked.model_copy(update={"resources": asked.resources.model_copy(update={"gpus": 3072})})
    misses = nearmiss.near_misses(asked, H100)
    assert misses
    assert all(rules.faults(miss.recipe) == [] for miss in misses)
    assert "at best 24" in nearmiss.idle_nodes(asked)


def test_dpo_knows_its_reference_and_its_pairs() -> None:
    """A resident reference adds its BF16 weights; a pair has twice the activations of a sequence."""
    words = ("parallelism.vpp=1",)
    plans = {
        ref: resolve(recipe("colosseum-355b/dpo", f"task.reference={ref}", *words))
        for ref in ("precomputed", "resident", "host")
    }
    parts = {ref: plan.step_time_parts_s["reference"] for ref, plan in plans.items()}
    assert parts["precomputed"] == 0
    assert 0 < parts["resident"] < parts["host"]
    memory = {ref: plan.memory for ref, plan in plans.items()}
    plain, resident, host = (memory[r] for r in ("precomputed", "resident", "host"))
    assert plain is not None
    assert resident is not None
    assert host is not None
    assert resident.stages[1].weights_bytes == pytest.approx(2 * plain.stages[1].weights_bytes)
    assert host.host_bytes_per_node == pytest.approx(8 * plain.stages[0].weights_bytes, rel=0.02)
    sft = resolve(recipe("colosseum-355b/sft", "parallelism.vpp=1")).memory
    assert sft is not None
    assert plain.stages[1].activations_bytes == pytest.approx(2 * sft.stages[1].activations_bytes, rel=0.02)


def test_lora_counts_adapters_alone() -> None:
    """Frozen weights take 2 bytes each, adapters 2 + 4 + 12, and there is no second policy: 8B on one H200."""
    one_gpu = ("task.reference=resident", "resources.gpus=1", "resources.gpus_per_node=1", "parallelism.tp=1")
    one_gpu += ("parallelism.sequence_parallel=false", "hardware=h200-sxm", "batch.gbs=8", "precision=bf16")
    one_gpu += ("precision.moments_dtype=fp32", "precision.grad_reduce_dtype=fp32")
    (stage,) = resolve(recipe("debug-8b/dpo", *one_gpu, "task.lora.rank=16")).memory.stages
    model = recipe("debug-8b/dpo").model
    shape = Shape.of(model, 4096)
    ins_and_outs = (shape.hidden + shape.qkv_width) + 2 * shape.hidden + 2 * (shape.hidden + shape.ffn)
    assert shape.heads * shape.head_dim == shape.hidden
    adapters = 16 * shape.layers * ins_and_outs
    frozen = shape.params
    assert stage.gradients_bytes == pytest.approx(4 * adapters)
    assert stage.optimizer_bytes == pytest.approx(12 * adapters)
    assert stage.weights_bytes == pytest.approx(2 * (frozen + adapters), rel=1e-3)
    assert stage.total_bytes < 60e9
    (every_weight,) = resolve(recipe("debug-8b/dpo", *one_gpu)).memory.stages
    assert every_weight.total_bytes > 150e9


def test_checkpoint_of_the_case_study() -> None:
    """2 + 12 bytes a parameter: 5.0 TB for 355e9, the case study's figure."""
    assert scaling.checkpoint_bytes(recipe("colosseum-355b/cpt-16k-expand")) == pytest.approx(5.0e12, rel=0.01)


@given(save=st.floats(1.0, 600.0), hours=st.floats(1.0, 500.0))
def test_dalys_interval_is_the_best(save: float, hours: float) -> None:
    """No interval 20% away has a better goodput (Daly 2006); near Young's sqrt(2 save MTBF) for rare failures."""
    mtbf = hours * 3600.0
    best = scaling.optimal_interval_s(save, mtbf)
    assert best == pytest.approx(math.sqrt(2 * save * mtbf), rel=0.5)
    at = scaling.goodput(best, save, 600.0, mtbf)
    assert 0 < at < 1
    assert all(scaling.goodput(best * f, save, 600.0, mtbf) <= at + 1e-9 for f in (0.8, 1.2))


def test_cadence_and_goodput_of_a_plan() -> None:
    words = ("cluster.node_mtbf_hours=20000", "checkpoint.every_steps=200")
    plan = resolve(recipe("colosseum-355b/cpt-16k-expand", *words))
    disk = plan.storage
    assert disk is not None
    assert disk.save_time_s == pytest.approx(disk.checkpoint_bytes / 100e9)
    assert disk.advised_every_steps is not None
    assert disk.goodput is not None
    assert 0.8 < disk.goodput < 1


@pytest.mark.parametrize("stage", ["colosseum-355b/sft", "colosseum-355b/dpo"])
def test_nemo_aligner_gets_no_context_parallelism(stage: str) -> None:
    """The engine refuses it; left to the planner it stays 1, and no other layout is told that has it."""
    nemo1 = engine_of("nemo1")
    free = nemo1.pinned(free_layout(recipe(stage, "engine=nemo1")))
    plan = resolve(free, H100)
    assert not [f for f in nemo1.faults(apply_layout(free, plan.layout)) if "parallelism" in f.path]
    assert np.all(candidates(free, H100).layouts.cp == 1)
    elsewhere = engine_of("mcore").pinned(free_layout(recipe(stage, "engine=mcore")))
    assert np.any(candidates(elsewhere, H100).layouts.cp > 1)


@pytest.mark.parametrize(("stage", "dp_of_aligner"), [("colosseum-355b/sft", 14), ("colosseum-355b/dpo", 35)])
def test_the_alignment_of_the_355b_has_context_parallelism_where_its_engine_does(
    stage: str, dp_of_aligner: int
) -> None:
    """A batch of 140 is little for 2,800 GPUs: with CP2 and PP25 a replica has 20 micro-batches instead of 4."""
    ours, as_before = recipe(stage), recipe(stage, "parallelism.pp=10", "parallelism.cp=1")
    plan, before = (resolve(engine_of("mcore").pinned(r), H100) for r in (ours, as_before))
    layout = plan.layout
    assert (layout.tp, layout.pp, layout.cp, layout.dp) == (8, 25, 2, 7) and layout.microbatches == 20
    assert before.layout.microbatches == 4
    assert plan.step_time_s < 0.8 * before.step_time_s
    nemo1 = engine_of("nemo1")
    with_aligner = resolve(nemo1.pinned(recipe(stage, "engine=nemo1")), H100)
    assert (with_aligner.layout.cp, with_aligner.layout.dp) == (1, dp_of_aligner)


def test_a_tie_is_told_as_one() -> None:
    """VPP5 is within 0.5% of the case study's VPP10: its own layout is not said to lose."""
    fixed = recipe("colosseum-355b/cpt-16k-expand")
    plan = resolve(fixed, H100)
    for other in alternatives(fixed, plan, H100, 5):
        far = float(other.reason.split("%")[0])
        assert other.reason.endswith("a tie" if far <= 0.5 else "but the recipe fixes its layout")


def test_every_shipped_recipe_fits_its_hardware() -> None:
    """Train refuses one that does not."""
    for name in shipped_recipes():
        assert resolve(load(name).recipe, top=0).fits, name
