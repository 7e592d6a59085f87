"""explain, diff and schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from colosseum.recipe.compare import differences, kind_of
from colosseum.recipe.describe import catalogue
from colosseum.recipe.jsonschema import recipe_schema
from colosseum.recipe.load import load, shipped_recipes
from tests.cli.conftest import Cli

ROOT = Path(__file__).resolve().parents[2]


def test_a_field_names_every_place_that_set_it_in_order(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [debug/cpt-4k-bf16, _self_]\noptimizer:\n  lr: 0.001\n")
    done = cli("explain", "mine.yaml", "optimizer.lr", "optimizer.lr=0.0005", "--json")
    assert done.code == 0, done.err
    (field,) = json.loads(done.out)["fields"]
    assert field["value"] == 0.0005
    places = [(s["where"].rpartition("/")[2], s["value"]) for s in field["set_by"]]
    assert places[-3:] == [("cpt-4k-bf16.yaml:35", 2.0e-3), ("mine.yaml:3", 0.001), ("command line", 0.0005)]
    assert field["changes"] == "numerics"
    assert field["names"]["megatron-lm"] == "--lr"
    assert field["names"]["nemo1"] == "model.optim.lr"


def test_a_field_of_the_case_study_reads_well(cli: Cli) -> None:
    done = cli("explain", "colosseum-355b/cpt-16k-expand", "parallelism.vpp")
    assert done.code == 0
    lines = [line.split(maxsplit=1) for line in done.out.splitlines()]
    assert lines[0] == ["parallelism.vpp", "10"] or lines[0][1].strip() == "10"
    assert "--num-virtual-stages-per-pipeline-rank" in done.out
    assert "recipes/colosseum-355b/cpt-16k-expand.yaml:" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_without_a_key_the_whole_schema_is_shown(cli: Cli) -> None:
    done = cli("explain", "debug/cpt-4k-bf16", "--json")
    assert done.code == 0
    shown = {field["path"] for field in json.loads(done.out)["fields"]}
    assert {"optimizer.lr", "cluster.scheduler", "hardware.peak_flops.bf16", "task.kind"} <= shown
    assert len(shown) > 120
    table = cli("explain", "debug/cpt-4k-bf16")
    assert table.code == 0
    assert all(section in table.out for section in ("model.", "precision.", "cluster."))


@pytest.mark.parametrize("key", ["parallelism.vp", "nothing", "parallelism.vpp.x", "model.."])
def test_an_unknown_key_is_refused_with_the_nearest(cli: Cli, key: str) -> None:
    done = cli("explain", "debug/cpt-4k-bf16", key, "--json")
    assert done.code == 2
    (fault,) = json.loads(done.out)["faults"]
    assert fault["rule"] == "this recipe has no such field"
    if key == "parallelism.vp":
        assert "parallelism.vpp" in fault["nearest"]


def test_diff_tells_the_story_of_the_stages(cli: Cli) -> None:
    done = cli("diff", "colosseum-355b/cpt-16k-expand", "colosseum-355b/cpt-fp8", "--json")
    assert done.code == 0
    found = {d["path"]: d for d in json.loads(done.out)["differences"]}
    assert (found["precision.fp8"]["first"], found["precision.fp8"]["second"]) == ("none", "delayed")
    assert found["precision.fp8"]["kind"] == "numerics"
    assert found["overlap.tp_comm"]["kind"] == "performance"
    assert found["name"]["kind"] == "operations"
    assert "model.num_layers" not in found


def test_diff_of_a_recipe_with_itself(cli: Cli) -> None:
    done = cli("diff", "generic", "generic")
    assert (done.code, done.out.strip()) == (0, "no difference")
    done = cli("diff", "generic", "train.seed=7", "--json")
    assert [d["path"] for d in json.loads(done.out)["differences"]] == ["train.seed"]
    assert cli("diff", "generic").code == 2


@pytest.mark.parametrize("name", shipped_recipes())
def test_no_recipe_differs_from_itself_and_every_difference_has_a_field(name: str) -> None:
    recipe = load(name).recipe
    assert differences(recipe, recipe) == []
    other = load("generic").recipe
    known = set(catalogue())
    for difference in differences(recipe, other):
        head = difference.path
        parts = [p for p in head.split(".") if not p.isdigit()]
        assert (
            head in known
            or ".".join(parts[:2]) in {k.rsplit(".", 1)[0] for k in known} | known
            or parts[0]
            in (
                "cluster",
                "data",
            )
        ), head


def test_what_a_change_changes() -> None:
    assert kind_of("batch.mbs") == "performance"
    assert kind_of("batch.gbs") == "numerics"
    assert kind_of("resources.time_limit") == "operations"
    assert kind_of("resources.gpus") == "performance"
    assert kind_of("cluster.paths.data") == "operations"
    assert kind_of("checkpoint.load") == "numerics"


def written_recipes() -> list[Path]:
    return [p for p in sorted((ROOT / "recipes").rglob("*.yaml")) if "campaigns" not in p.parts]


@pytest.mark.parametrize("path", written_recipes(), ids=lambda p: p.stem)
def test_shipped_files_complete_and_check_in_an_editor(path: Path) -> None:
    data: Any = yaml.safe_load(path.read_text())
    validator = jsonschema.Draft202012Validator(recipe_schema())
    assert [e.message for e in validator.iter_errors(data)] == []


def test_an_editor_sees_what_is_wrong(cli: Cli) -> None:
    done = cli("schema")
    assert done.code == 0
    schema = json.loads(done.out)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    def faults(data: Any) -> int:
        return len(list(validator.iter_errors(data)))

    assert faults({"defaults": ["generic", "_self_"], "name": "x"}) == 0
    assert faults({"batch": {"gbs": "${batch.mbs}"}}) == 0
    assert faults({"batch": {"gbs": "many"}}) == 1
    assert faults({"batch": {"gsb": 8}}) == 1
    assert faults({"parallelism": {"tp": 0}}) == 1
    assert faults({"precision": {"fp8": "sometimes"}}) == 1
