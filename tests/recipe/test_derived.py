"""Facts of a recipe: each has one answer, which rules, planner, engines and job scripts share."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colosseum.engines.planned import plan as plan_of
from colosseum.launch.runs.submit import prepare
from colosseum.launch.slurm import job_script
from colosseum.planning import scaling
from colosseum.planning.resolve import resolve
from colosseum.recipe import derived
from colosseum.recipe.describe import catalogue
from colosseum.recipe.load import load
from colosseum.recipe.schema import Recipe

DPO = load("colosseum-355b/dpo", ["engine=nemo1", "data.train_samples=100000", "train.epochs=7"]).recipe


def with_rows(rows: int, gbs: int, epochs: int) -> Recipe:
    return DPO.model_copy(
        update={
            "data": DPO.data.model_copy(update={"train_samples": rows}),
            "batch": DPO.batch.model_copy(update={"gbs": gbs}),
            "train": DPO.train.model_copy(update={"epochs": epochs}),
        }
    )


def test_seven_epochs_of_100000_pairs_are_4998_steps_everywhere(tmp_path: Path) -> None:
    assert DPO.batch.gbs == 140
    assert derived.total_steps(DPO) == 4998
    assert derived.dropped_rows(DPO) == 100_000 - 714 * 140 == 40
    compiled = prepare(DPO, tmp_path)
    assert compiled.manifest["total_steps"] == 4998
    assert json.loads(compiled.files["engine/command.json"])["total_steps"] == 4998
    assert any("drops its last 40 rows" in sentence for sentence in compiled.plan.assumptions)
    plan = resolve(DPO)
    assert plan.days is not None and plan.production is not None
    each = plan.production.step_time_s * plan.production.restart_factor
    assert plan.days * 86400 == pytest.approx(4998 * each)


@given(rows=st.integers(1, 10**7), gbs=st.integers(1, 4096), epochs=st.integers(1, 50))
def test_epochs_are_floored_one_by_one(rows: int, gbs: int, epochs: int) -> None:
    """A loader that takes whole batches and begins each epoch anew, counted by hand."""
    recipe = with_rows(rows, gbs, epochs)
    assert derived.total_steps(recipe) == sum(rows // gbs for _ in range(epochs))
    assert derived.dropped_rows(recipe) + gbs * (rows // gbs) == rows


def test_a_dpo_step_forwards_two_sequences_a_pair(tmp_path: Path) -> None:
    assert derived.tokens_per_step(DPO) == 2 * 140 * DPO.batch.seq_length
    cpt = load("colosseum-355b/cpt-4k-bf16").recipe
    assert derived.tokens_per_step(cpt) == cpt.batch.gbs * cpt.batch.seq_length
    compiled = prepare(DPO, tmp_path)
    constants = json.loads(compiled.files["engine/command.json"])["constants"]
    plan = compiled.plan
    assert plan.tokens_per_s_per_gpu is not None and plan.step_time_s is not None
    planned = plan.tokens_per_s_per_gpu * plan.step_time_s * DPO.resources.gpus
    assert constants["tokens_per_step"] == pytest.approx(planned)


@pytest.mark.parametrize(
    ("words", "bytes_per_parameter"),
    [
        (("precision.moments_dtype=fp32",), 2 + 12),
        (("precision.moments_dtype=bf16",), 2 + 8),
        (("precision.moments_dtype=fp32", "precision.dtype=fp32", "precision.grad_reduce_dtype=fp32"), 4 + 12),
    ],
)
def test_plan_and_job_script_know_one_size_of_a_checkpoint(words: tuple[str, ...], bytes_per_parameter: int) -> None:
    recipe = load("debug-8b/cpt-4k-bf16", words, cluster="dgx-h100").recipe
    plan = plan_of(recipe)
    assert plan.storage is not None
    size, rate = plan.storage.checkpoint_bytes, recipe.cluster.storage.write_bytes_per_s
    assert size == scaling.checkpoint_bytes(recipe)
    assert size / bytes_per_parameter == pytest.approx(8.54e9, rel=0.01)
    assert rate is not None and plan.step_time_range_s is not None
    step_s = math.ceil(plan.step_time_range_s[1])
    assert job_script.margin_s(recipe, plan) == int(2 * size / rate) + 120 + step_s


def test_a_layout_is_written_one_way() -> None:
    layout = plan_of(load("colosseum-355b/cpt-16k-expand").recipe).layout
    assert layout.text == "TP8 PP10 VPP10 CP4 DP9"
    assert derived.layout_text(1, 1, 1, 1, 1) == "TP1 PP1 DP1"


def test_completion_offers_every_field_of_the_catalogue() -> None:
    from colosseum.cli.arguments import complete

    assert {f"{path}=" for path in catalogue() if path.startswith("optimizer.")} == set(complete("optimizer."))
