"""Shipped recipes: legal, complete, and what the case study and the public sources say."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from colosseum.planning.flops import Shape
from colosseum.recipe.load import cluster_names, describe_recipe, load, shipped_recipes
from colosseum.recipe.rules_base import Facts
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import FromStage
from colosseum.recipe.stages import CPT_STAGES, recipe_of_stage

RECIPES = Path(__file__).parents[2] / "recipes"
CONF = Path(__file__).parents[2] / "conf"
FAMILIES = ("colosseum-355b", "debug-8b", "debug")
STAGES = ("cpt-4k-bf16", "cpt-16k-expand", "cpt-fp8", "sft", "dpo")


def recipe(name: str, *words: str) -> Recipe:
    return load(name, words).recipe


def test_what_is_shipped() -> None:
    expected = {f"{family}/{stem}" for family in FAMILIES for stem in STAGES}
    assert set(shipped_recipes()) == expected | {"colosseum-355b/baseline-96", "generic"}
    assert {"local", "dgx-h100"} <= set(cluster_names())


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_shipped_recipe_is_legal_described_and_named(name: str) -> None:
    found = recipe(name)  # refused = raised
    assert found.name == name.replace("/", "-")
    assert describe_recipe(name).endswith((".", ":"))
    lines = (RECIPES / f"{name}.yaml").read_text().splitlines()
    assert lines[0] == "# @package _global_"


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_goes_to_every_cluster(name: str) -> None:
    assert load(name, cluster="dgx-h100").recipe.cluster.scheduler == "slurm"
    assert load(name, cluster="local").recipe.cluster.scheduler == "local"


def test_the_case_study() -> None:
    """iGenius' Colosseum 355B on NVIDIA DGX Cloud."""
    first, second, third = (recipe(f"colosseum-355b/{stem}") for stem in STAGES[:3])
    layouts = [Facts.of(r) for r in (first, second, third)]
    assert [(f.tp, f.pp, f.vpp, f.cp, f.dp, f.microbatches) for f in layouts] == [
        (8, 8, 12, 1, 45, 64),
        (8, 10, 10, 4, 9, 140),
        (8, 10, 10, 4, 9, 140),
    ]
    assert [r.batch.gbs for r in (first, second, third)] == [2880, 1260, 1260]
    assert [r.batch.seq_length for r in (first, second, third)] == [4096, 16384, 16384]
    assert {r.resources.gpus for r in (first, second, third)} == {2880}
    assert {(r.optimizer.lr, r.optimizer.min_lr) for r in (first, second, third)} == {(1e-5, 5e-6)}
    assert [r.overlap.tp_comm for r in (first, second, third)] == [True, True, False]
    for stage in (first, second, third):
        over = stage.overlap
        assert over.defer_embedding_wgrad_compute and over.wgrad_deferral_limit == 22
        assert over.p2p is True and over.batch_p2p is False
        assert stage.fusion.cross_entropy and stage.fusion.rope and stage.resources.vboost
        assert not stage.train.deterministic and stage.checkpoint.format == "torch_dist"
    eight = third.precision
    assert (eight.fp8, eight.fp8_format, eight.fp8_params, eight.fp8_wgrad) == ("delayed", "hybrid", True, True)
    assert (eight.fp8_margin, eight.fp8_interval) == (0, 1)
    assert (eight.fp8_amax_history_len, eight.fp8_amax_compute_algo) == (1024, "max")
    assert second.train.val_every_steps == third.train.val_every_steps == 100
    baseline = Facts.of(recipe("colosseum-355b/baseline-96"))
    assert (baseline.replica, baseline.pp) == (96, 12)


def test_the_alignment_of_the_case_study() -> None:
    sft, dpo = recipe("colosseum-355b/sft"), recipe("colosseum-355b/dpo")
    assert sft.engine == dpo.engine == "mcore"
    assert sft.resources.gpus == dpo.resources.gpus == 350 * 8
    assert sft.batch.gbs == 140
    assert 1e-7 <= sft.optimizer.lr <= 5e-7
    assert (sft.train.epochs, sft.data.train_samples) == (1, 1_000_000)
    assert (dpo.train.epochs, dpo.data.train_samples) == (3, 100_000)
    assert sft.task.kind == "sft" and dpo.task.kind == "dpo"
    assert sft.task.shuffle and sft.task.num_workers == 0
    for tokens in (sft.task.chat_tokens, dpo.task.chat_tokens):
        assert (tokens.system_turn_start, tokens.turn_start, tokens.label_start) == tuple(
            f"<extra_id_{i}>" for i in range(3)
        )
        assert tokens.end_of_turn == tokens.end_of_name == "\n"


def test_every_shipped_recipe_is_of_our_engine() -> None:
    assert {recipe(name).engine for name in shipped_recipes()} == {"mcore"}


def test_tokens_of_the_pretraining_stages_fit_the_published_throughput() -> None:
    """2,880 GPUs make 36e9 to 48e9 tokens a day: sixty days are at most 2.9e12, ours 2.5e12."""
    total = sum(recipe(f"colosseum-355b/{stem}").train.tokens or 0 for stem in STAGES[:3])
    assert 0 < total <= 2.5e12


@pytest.mark.parametrize(
    ("name", "billions"),
    [("nemotron4-340b", 341.03), ("colosseum-355b", 354.85), ("nemotron-8b", 8.54), ("llama3-8b", 8.03)],
)
def test_published_sizes(name: str, billions: float) -> None:
    found = recipe("generic", f"model={name}")
    assert Shape.of(found.model, 4096).params == pytest.approx(billions * 1e9, rel=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_hand_over(family: str) -> None:
    """Each stage starts from the one before it, which has no more layers and the same vocabulary."""
    names = {stem: stage for stage, stem in CPT_STAGES.items()} | {"sft": "sft", "dpo": "dpo"}
    chain = [recipe(f"{family}/{stem}") for stem in STAGES]
    for before, after, stem in zip(chain, chain[1:], STAGES, strict=False):
        assert after.checkpoint.source == FromStage(names[stem])
        assert after.model.num_layers >= before.model.num_layers
        assert after.model.vocab_size == before.model.vocab_size
    assert chain[1].model.num_layers > chain[0].model.num_layers
    assert chain[1].batch.seq_length > chain[0].batch.seq_length
    assert not isinstance(chain[0].checkpoint.source, FromStage)


@pytest.mark.parametrize("name", ["colosseum-355b", "debug"])
def test_a_campaign_runs_the_stages_in_order(name: str) -> None:
    campaign: dict[str, Any] = yaml.safe_load((RECIPES / f"campaigns/{name}.yaml").read_text())
    assert campaign["name"] == name
    stages = campaign["stages"]
    assert [s["recipe"] for s in stages] == [f"{name}/{stem}" for stem in STAGES]
    for before, after in pairwise(stages):
        loaded = load(after["recipe"], after.get("overrides", [])).recipe
        assert loaded.checkpoint.source == FromStage(before["name"])


def test_every_stage_word_names_a_shipped_recipe() -> None:
    for stage in CPT_STAGES:
        for family in FAMILIES:
            assert recipe_of_stage("cpt", stage, family) in shipped_recipes()
    for kind in ("cpt", "sft", "dpo"):
        assert recipe_of_stage(kind, "debug", None) in shipped_recipes()


def test_generic_writes_every_field_out() -> None:
    """So that each can be seen and overridden; the cluster is chosen beside it."""
    loaded = load("generic")

    def leaves(node: Any, path: str) -> list[str]:
        if isinstance(node, dict) and node:
            return [leaf for key, value in node.items() for leaf in leaves(value, f"{path}.{key}".lstrip("."))]
        return [path]

    data = loaded.recipe.as_data()
    del data["cluster"]
    missing = {
        leaf for leaf in leaves(data, "") if leaf not in loaded.origins and leaf.rsplit(".", 1)[0] not in loaded.origins
    }
    assert missing == set()


@pytest.mark.parametrize("group", ["model", "hardware", "precision", "optimizer", "tokenizer", "data"])
def test_generic_takes_every_choice_of_a_group(group: str) -> None:
    for path in sorted((CONF / group).glob("*.yaml")):
        words = [f"{group}={path.stem}"]
        if path.stem == "cpu":
            words += ["fusion.cross_entropy=false", "fusion.rope=false", "fusion.gradient_accumulation=false"]
        if path.stem in ("chat", "preference"):
            words += ["task.kind=sft", "tokenizer=nemotron-256k"]
        if path.stem.startswith("fp8"):
            words += ["hardware=h100-sxm"]
        loaded = load("generic", words)
        assert any(path.stem in s.where for setting in loaded.origins.values() for s in setting)


@pytest.mark.parametrize("name", sorted(p.stem for p in (CONF / "hardware").glob("*.yaml")))
def test_hardware_figures_keep_their_proportions(name: str) -> None:
    """What holds for every device: FP8 is about twice BF16, memory feeds no faster than the tensor cores ask."""
    hardware = recipe(
        "generic",
        f"hardware={name}",
        *(["fusion={cross_entropy: false, rope: false, gradient_accumulation: false}"] if name == "cpu" else []),
    ).hardware
    assert hardware.name == name
    peaks = hardware.peak_flops
    if peaks.fp8 is not None:
        assert peaks.fp8 / peaks.bf16 == pytest.approx(2, rel=0.03)
    if hardware.kind == "gpu":
        assert 200 < peaks.bf16 / hardware.memory_bytes_per_s < 500 or name == "a100-80g"
        assert 40e9 < hardware.memory_bytes < 200e9
        assert (hardware.nvlink_bytes_per_s is None) == (hardware.nvlink_domain == 1)
