"""Megatron-LM's argument list: every word is one its parser knows, with the values that the recipe says."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from colosseum.engines import fields
from colosseum.engines.base import EngineLaunch
from colosseum.engines.fields import table
from colosseum.engines.megatron_lm.engine import MegatronLmEngine
from tests.engines.conftest import Rendered, Resolved

REFERENCE = Path(fields.__file__).parent / "options_megatron_lm.tsv"
VERSIONS = {"0.16.1", "0.19.0"}
SHIPPED = {
    "colosseum-355b/baseline-96": (),
    "colosseum-355b/cpt-4k-bf16": (),
    "colosseum-355b/cpt-16k-expand": (),
    "colosseum-355b/cpt-fp8": ("checkpoint.load=[weights]",),
    "debug-8b/cpt-4k-bf16": (),
    "debug-8b/cpt-16k-expand": (),
    "debug-8b/cpt-fp8": ("checkpoint.load=[weights]",),
    "generic": (),
}


def options() -> dict[str, dict[str, str]]:
    lines = [line for line in REFERENCE.read_text().splitlines() if not line.startswith("#")]
    return {row["option"]: row for row in csv.DictReader(lines, delimiter="\t")}


def parsed(launch: EngineLaunch) -> dict[str, list[str]]:
    """Values by option."""
    command = json.loads(launch.files["command.json"])
    found: dict[str, list[str]] = {}
    option = ""
    for word in [*command["arguments"], *command["first"]]:
        if word.startswith("--"):
            assert word not in found, f"{word} twice"
            option = word
            found[option] = []
        else:
            found[option].append(word)
    return found


@pytest.mark.parametrize("name", SHIPPED)
def test_every_word_is_one_that_both_parsers_know(name: str, rendered: Rendered) -> None:
    known = options()
    for option, values in parsed(rendered(name, "engine=megatron-lm", *SHIPPED[name])).items():
        row = known[option]
        assert set(row["versions"].split()) == VERSIONS, option
        if row["values"] in "01":
            assert len(values) == int(row["values"]), option
        else:
            assert values, option
        if row["choices"]:
            assert set(values) <= set(row["choices"].split(",")), option


def test_the_table_names_options_that_exist() -> None:
    known = options()
    for field, row in table().items():
        cell = row.names["megatron-lm"]
        assert not cell.startswith("--") or cell in known, field


def test_the_case_study_in_fp8(rendered: Rendered) -> None:
    found = parsed(rendered("colosseum-355b/cpt-fp8", "engine=megatron-lm", "checkpoint.load=[weights]"))
    expected = {
        "--num-layers": "100",
        "--tensor-model-parallel-size": "8",
        "--pipeline-model-parallel-size": "10",
        "--num-virtual-stages-per-pipeline-rank": "10",
        "--context-parallel-size": "4",
        "--fp8-format": "hybrid",
        "--fp8-recipe": "delayed",
        "--fp8-margin": "0",
        "--fp8-amax-history-len": "1024",
        "--fp8-amax-compute-algo": "max",
        "--wgrad-deferral-limit": "22",
        "--global-batch-size": "1260",
        "--seq-length": "16384",
        "--vocab-size": "255999",  # NullTokenizer adds its end of document
        "--train-iters": str(400_000_000_000 // (1260 * 16384)),
    }
    assert {option: found[option] for option in expected} == {k: [v] for k, v in expected.items()}
    switches = {"--fp8-param-gather", "--defer-embedding-wgrad-compute", "--sequence-parallel", "--squared-relu"}
    assert all(found[switch] == [] for switch in switches)
    absent = {"--tp-comm-overlap", "--no-fp8-wgrad", "--deterministic-mode", "--no-rope-fusion", "--swiglu"}
    assert not absent & found.keys()
    assert found["--pretrained-checkpoint"] == ["stage:expand-16k"]


def test_a_blend_keeps_its_weights(rendered: Rendered) -> None:
    found = parsed(rendered("generic", "engine=megatron-lm", "data.blend=[{path: a, weight: 3}, {path: b, weight: 1}]"))
    assert found["--data-path"] == ["3.0", "a", "1.0", "b"]


@pytest.mark.parametrize(
    ("words", "path", "can"),
    [
        (("checkpoint.from=run:x", "checkpoint.load=[weights, data]"), "checkpoint.load", "mcore"),
        (("stability.mode=watch",), "stability.mode", "mcore"),
        (("model.activation_func=silu", "model.gated_linear_unit=false"), "model.activation_func", "mcore"),
        (("data.record_samples=true",), "data.record_samples", "mcore"),
        (("model.rope_scaling=32.0",), "model.rope_scaling", "gpt_builders"),
        (("model.rope_scaling=4.0", "model.rope_scaling_type=linear"), "model.rope_scaling_type", "mcore"),
    ],
)
def test_what_it_cannot_do_is_refused(words: tuple[str, ...], path: str, can: str, resolved: Resolved) -> None:
    recipe = resolved("generic", "engine=megatron-lm", *words)
    faults = MegatronLmEngine().faults(recipe)
    assert [fault.path for fault in faults] == [path]
    assert can in faults[0].rule


def test_sft_names_the_engines_that_can(resolved: Resolved) -> None:
    faults = MegatronLmEngine().faults(resolved("colosseum-355b/sft"))
    assert "nemo1 and nemo2 do" in next(f.rule for f in faults if f.path == "task.kind")


def test_a_run_s_checkpoint_is_its_neighbour_s(rendered: Rendered) -> None:
    words = ("engine=megatron-lm", "checkpoint.from=run:20260101-x@300", "checkpoint.load=[weights]")
    found = parsed(rendered("generic", *words))
    assert found["--pretrained-checkpoint"] == ["../20260101-x/checkpoints"]
    assert found["--ckpt-step"] == ["300"]
