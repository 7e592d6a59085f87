"""NeMo 2: every call and argument exists, the case study's values arrive, the entry builds what the file says."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colosseum.engines.nemo2.config import launch_tree
from colosseum.engines.nemo2.engine import Nemo2Engine
from tests.engines.conftest import Rendered, Resolved

REFERENCE = Path(__file__).parent / "reference" / "nemo2.tsv"
CPT = ("engine=nemo2",)
SFT = ("engine=nemo2", "data.train=/d/training.jsonl", "data.validation=/d/validation.jsonl")
SHIPPED = {
    "colosseum-355b/baseline-96": CPT,
    "colosseum-355b/cpt-4k-bf16": CPT,
    "colosseum-355b/cpt-16k-expand": CPT,
    "colosseum-355b/cpt-fp8": CPT,
    "colosseum-355b/sft": SFT,
    "debug-8b/cpt-fp8": CPT,
    "generic": CPT,
}


def reference(file: Path = REFERENCE) -> dict[str, set[str]]:
    """Arguments by call, of a list that was read from the engine's source."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    return {row["target"]: set(row["arguments"].split()) for row in csv.DictReader(lines, delimiter="\t")}


def calls(node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every call of a tree, outermost first."""
    if isinstance(node, dict):
        if "call" in node:
            yield node["call"], node["with"]
        for value in node.values():
            yield from calls(value)
    elif isinstance(node, list):
        for item in node:
            yield from calls(item)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_call_and_argument_exists(name: str, resolved: Resolved, rendered: Rendered) -> None:
    rendered(name, *SHIPPED[name])
    known = reference()
    for target, arguments in calls(launch_tree(resolved(name, *SHIPPED[name]))):
        assert set(arguments) <= known[target], target


def test_the_case_study_in_fp8(resolved: Resolved) -> None:
    found = dict(calls(launch_tree(resolved("colosseum-355b/cpt-fp8", *CPT))))
    strategy = found["nemo.lightning:MegatronStrategy"]
    layout = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")
    assert [strategy[key] for key in layout] == [8, 10, 10]
    assert (strategy["context_parallel_size"], strategy["sequence_parallel"]) == (4, True)
    precision = found["nemo.lightning:MegatronMixedPrecision"]
    assert {key: precision[key] for key in precision if key.startswith("fp8")} == {
        "fp8": "hybrid",
        "fp8_recipe": "delayed",
        "fp8_margin": 0,
        "fp8_amax_history_len": 1024,
        "fp8_amax_compute_algo": "max",
        "fp8_wgrad": True,
        "fp8_param_gather": True,
    }
    overlap = found["nemo.lightning.pytorch.callbacks.megatron_comm_overlap:MegatronCommOverlapCallback"]
    assert (overlap["defer_embedding_wgrad_compute"], overlap["wgrad_deferral_limit"]) == (True, 22)
    assert (overlap["overlap_p2p_comm"], overlap["batch_p2p_comm"], overlap["tp_comm_overlap"]) == (True, False, False)
    model = found["nemo.collections.llm:GPTConfig"]
    assert (model["num_layers"], model["kv_channels"], model["vocab_size"]) == (100, 192, 256000)
    assert model["activation_func"] == {"name": "megatron.core.activations:squared_relu"}
    assert found["nemo.lightning:Trainer"]["max_steps"] == 400_000_000_000 // (1260 * 16384)
    assert found["nemo.lightning:RestoreConfig"]["load_optim_state"] is True


def test_chat_tokens_reach_the_dataset(resolved: Resolved) -> None:
    found = dict(calls(launch_tree(resolved("colosseum-355b/sft", *SFT))))
    data = found["nemo.collections.llm:ChatDataModule"]
    assert data["dataset_root"] == "/d"
    assert data["dataset_kwargs"]["special_tokens"]["turn_start"] == "<extra_id_1>"


def test_the_entry_builds_the_tree(rendered: Rendered, tmp_path: Path) -> None:
    tree = {
        "call": "json:dump",
        "with": {
            "obj": {"a": [1, {"call": "builtins:dict", "with": {"b": {"name": "math:pi"}}}]},
            "fp": {"name": "sys:stdout"},
        },
    }
    launch = rendered("generic", *CPT)
    (tmp_path / "calls_start.py").write_bytes(launch.files["calls_start.py"])
    (tmp_path / "nemo2.json").write_text(json.dumps(tree))
    done = subprocess.run(
        [sys.executable, "calls_start.py", "nemo2.json"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {"a": [1, {"b": 3.141592653589793}]}


@pytest.mark.parametrize(
    ("name", "words", "path", "says"),
    [
        ("colosseum-355b/dpo", ("engine=nemo2",), "task.kind", "nemo1"),
        ("colosseum-355b/sft", ("engine=nemo2", SFT[2]), "data.train", "training.jsonl"),
        ("generic", (*CPT, "optimizer.lr_schedule=linear"), "optimizer.lr_schedule", "mcore"),
        ("generic", (*CPT, "model.rope_scaling=8.0"), "model.rope_scaling_type", "Llama 3.1"),
        ("generic", (*CPT, "checkpoint.from=run:x", "checkpoint.load=[weights]"), "checkpoint.from", "NeMo 2"),
    ],
)
def test_what_it_cannot_do_is_refused(
    name: str, words: tuple[str, ...], path: str, says: str, resolved: Resolved
) -> None:
    faults = {fault.path: fault for fault in Nemo2Engine().faults(resolved(name, *words))}
    assert path in faults
    assert says in faults[path].rule
