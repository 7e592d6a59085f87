"""Composition, overrides, provenance and the sentences a user reads."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from colosseum.errors import Fault, RefusedInput
from colosseum.recipe import load as load_module
from colosseum.recipe.load import Loaded, cluster_names, describe_recipe, load

TINY = """\
# A tiny recipe
defaults:
  - model: two
  - _self_
name: tiny
task: {kind: cpt}
data:
  blend:
    - {path: "${cluster.paths.data}/a", weight: 1}
batch: {gbs: 8, seq_length: 64}
train: {steps: 10}
resources: {gpus: 1, gpus_per_node: 1}
hardware: {name: toy, kind: gpu, peak_flops: {bf16: 1e12, fp32: 1e12}, memory_bytes: 8000000000,
           memory_bytes_per_s: 1e10}
"""
MODEL = "num_layers: {layers}\nhidden_size: 64\nnum_attention_heads: 4\nvocab_size: 100\n"


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with a recipe, two models and a private cluster; nothing of the test machine leaks in."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/two.yaml").write_text(MODEL.format(layers=2))
    (tmp_path / "model/four.yaml").write_text(MODEL.format(layers=4))
    (tmp_path / "home/colosseum/cluster").mkdir(parents=True)
    for name in ("local", "mine"):
        text = f"name: {name}\nscheduler: local\ngpus_per_node: 1\npaths: {{data: /{name}}}\n"
        (tmp_path / f"home/colosseum/cluster/{name}.yaml").write_text(text)
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COLOSSEUM_CLUSTER", raising=False)
    return tmp_path


def tiny(house: Path, *words: str, cluster: str | None = None) -> Loaded:
    return load(str(house / "tiny.yaml"), words, cluster=cluster)


def refused(house: Path, *words: str, extra: str = "") -> dict[str, Fault]:
    if extra:
        (house / "tiny.yaml").write_text(TINY + extra)
    with pytest.raises(RefusedInput) as caught:
        tiny(house, *words)
    return {fault.path: fault for fault in caught.value.faults}


def test_a_recipe_gets_its_groups_and_the_local_cluster(house: Path) -> None:
    loaded = tiny(house)
    assert loaded.recipe.model.num_layers == 2
    assert loaded.recipe.cluster.name == "local"
    assert loaded.recipe.data.blend[0].path == "/local/a"


def test_group_choice_and_value_follow_each_other(house: Path) -> None:
    loaded = tiny(house, "model=four", "model.hidden_size=128", "train.steps=5")
    assert (loaded.recipe.model.num_layers, loaded.recipe.model.hidden_size, loaded.recipe.train.steps) == (4, 128, 5)
    steps = loaded.origins["train.steps"]
    assert [(s.value, s.where) for s in steps] == [(10, f"{house}/tiny.yaml:11"), (5, "command line")]
    assert loaded.origins["model.num_layers"][-1].where == f"{house}/model/four.yaml:1"


def test_cluster_by_option_word_and_environment(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiny(house, cluster="mine").recipe.data.blend[0].path == "/mine/a"
    assert tiny(house, "cluster=mine").recipe.cluster.name == "mine"
    monkeypatch.setenv("COLOSSEUM_CLUSTER", "mine")
    assert tiny(house).recipe.cluster.name == "mine"
    assert tiny(house, cluster="local").recipe.cluster.name == "local"
    assert {"local", "mine"} <= set(cluster_names())


def test_references_follow_an_override(house: Path) -> None:
    assert tiny(house, "cluster.paths.data=/elsewhere").recipe.data.blend[0].path == "/elsewhere/a"


def test_commas_and_percent_need_no_quotes(house: Path) -> None:
    loaded = tiny(house, "data.split=98,1,1", "+cluster.paths.runs=%u/runs", "++train.val_steps=3", "optimizer.lr=1e-5")
    assert loaded.recipe.data.split == "98,1,1"
    assert loaded.recipe.cluster.paths.runs == "%u/runs"
    assert loaded.recipe.optimizer.lr == 1e-5


def test_tilde_returns_to_the_default(house: Path) -> None:
    loaded = tiny(house, "train.seed=7", "~train.seed", "~data.blend")
    assert loaded.recipe.train.seed == 1234
    assert loaded.recipe.data.blend == ()
    assert "train.seed" not in loaded.origins


def test_a_replaced_section_leaves_no_trace(house: Path) -> None:
    loaded = tiny(house, "checkpoint={keep_last: 3}", "data.blend=[]", "cluster.container=null")
    assert loaded.origins["checkpoint.keep_last"][0].where == "command line"
    assert [s.where for s in loaded.origins["data.blend"]] == [f"{house}/tiny.yaml:8", "command line"]
    refusal = refused(house, "data.blend=[{path: a}]")["data.blend.0.weight"]
    assert (refusal.rule, refusal.where) == ("must be given", "command line")


def test_list_items_by_index(house: Path) -> None:
    assert tiny(house, "data.blend.0.weight=2").recipe.data.blend[0].weight == 2
    assert "the first has index 0" in refused(house, "data.blend.3.weight=2")["data.blend.3.weight"].rule


def test_every_fault_in_one_message(house: Path) -> None:
    faults = refused(
        house,
        "batch.gbz=8",
        extra="stability: {mode: off}\nprecision:\n  fp8: delayd\noptimizer: {lr: -1}\n",
    )
    assert faults["batch.gbz"].nearest == ("gbs",)
    assert faults["batch.gbz"].where == "command line"
    assert "quotes" in faults["stability.mode"].rule
    assert faults["precision.fp8"].nearest[0] == "delayed"
    assert faults["precision.fp8"].where == f"{house}/tiny.yaml:17"
    assert faults["optimizer.lr"].rule == "must be at least 0"


def test_traps_of_yaml_1_1(house: Path) -> None:
    faults = refused(house, extra="name2: x\ncheckpoint: {from: 7, async_save: true}\n")
    assert "quotes" in faults["checkpoint.from"].rule
    assert faults["checkpoint.async_save"].nearest == ("async",)
    assert "24h" in refused(house, "resources.time_limit=24:00:00")["resources.time_limit"].rule
    assert "quotes" in refused(house, "name=no")["name"].rule


def test_unions_show_the_names_a_file_uses(house: Path) -> None:
    assert refused(house, "task={kind: dpo, beta: -1}")["task.beta"].rule == "must be at least 1e-30"
    assert refused(house, "task.kind=dpoo")["task.kind"].nearest == ("dpo",)
    assert refused(house, "batch.mbs=x")["batch.mbs"].rule == "must be a whole number or must be auto"
    assert "out of scope" in refused(house, "model.num_moe_experts=8")["model.num_moe_experts"].rule


def test_a_bad_choice_names_the_nearest(house: Path) -> None:
    assert refused(house, "model=fourr")["model"].nearest[0] == "four"
    assert refused(house, "model=../../etc/passwd")["model"].where == "command line"


@pytest.mark.parametrize(
    "word", ["hydra.run.dir=x", "+hydra/launcher=x", "name=${oc.env:HOME}", "name", "=3", "a b=3", "name=!!python/x y"]
)
def test_words_that_are_refused(house: Path, word: str) -> None:
    assert any(fault.where == "command line" for fault in refused(house, word).values())


def test_a_recipe_derived_in_three_lines(house: Path) -> None:
    (house / "sub").mkdir()
    (house / "sub/base.yaml").write_text("# @package _global_\n" + TINY.replace("- model:", "- /model:"))
    (house / "mine.yml").write_text("defaults: [sub/base, _self_]\ntrain: {steps: 3}\n")
    loaded = load(str(house / "mine.yml"))
    assert loaded.recipe.train.steps == 3
    assert [s.where for s in loaded.origins["train.steps"]] == [f"{house}/sub/base.yaml:12", f"{house}/mine.yml:2"]
    (house / "mine.yml").write_text("defaults: [sub/base, {override /model: four}, _self_]\n")
    assert load(str(house / "mine.yml")).recipe.model.num_layers == 4


def test_description_is_the_first_comment(house: Path) -> None:
    assert describe_recipe(str(house / "tiny.yaml")) == "A tiny recipe"


def test_a_shadowed_file_is_named(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = house / "shipped"
    (shipped / "model").mkdir(parents=True)
    (shipped / "model/two.yaml").write_text(MODEL.format(layers=9))
    monkeypatch.setattr(load_module, "_conf", lambda: shipped)
    assert tiny(house).warnings == (f"{house}/model/two.yaml is used instead of the shipped conf/model/two.yaml",)


def test_no_home_at_all(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    assert tiny(house).recipe.data.blend[0].path == "data/a"  # the schema's default of cluster.paths.data


def test_a_load_is_quick_and_leaves_hydra_alone(house: Path) -> None:
    tiny(house)
    start = time.perf_counter()
    tiny(house, "model=four", "train.steps=5")
    assert time.perf_counter() - start < 0.35
    from hydra.core.global_hydra import GlobalHydra

    assert not GlobalHydra.instance().is_initialized()
