"""Megatron-Bridge: each call and argument exists, the case study arrives, the names of the table are its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from colosseum.engines import calls_start
from colosseum.engines.bridge.config import first_words, launch_tree
from colosseum.engines.bridge.engine import TREE, BridgeEngine
from colosseum.engines.fields import table
from tests.engines.conftest import Rendered, Resolved
from tests.engines.test_nemo2 import calls, reference

REFERENCE = Path(__file__).parent / "reference" / "bridge.tsv"
CPT = ("engine=bridge", "checkpoint.load=[weights]")
SFT = (*CPT, "data.train=/d/training.jsonl", "data.validation=/d/validation.jsonl")
SHIPPED = {
    "colosseum-355b/baseline-96": CPT,
    "colosseum-355b/cpt-4k-bf16": CPT,
    "colosseum-355b/cpt-16k-expand": CPT,
    "colosseum-355b/cpt-fp8": CPT,
    "colosseum-355b/sft": SFT,
    "debug-8b/cpt-fp8": CPT,
    "generic": CPT,
}
LEARNED = (*CPT, "model.position_embedding_type=learned_absolute", "fusion.rope=false")
LORA = (*SFT, "task.lora={rank: 8, alpha: 16.0, targets: [linear_qkv]}")
EVERYTHING = {
    "generic": (
        *(*CPT, "precision=fp8-delayed", "precision.fp8_params=false", "recompute.granularity=full"),
        *("precision.moments_dtype=bf16", "fusion.rope=false"),
        *("recompute.method=block", "recompute.num_layers=2", "parallelism.tp=2", "overlap.tp_comm=true"),
        *("tokenizer.kind=tokenizer_json", "tokenizer.path=/t/tokenizer.json", "model.rope_scaling=8.0"),
        *("model.rope_scaling_type=yarn", "model.original_max_position_embeddings=4096"),
        *("optimizer.lr_schedule=wsd", "optimizer.wsd_decay_steps=5"),
    ),
    "colosseum-355b/cpt-16k-expand": (*CPT, "recompute.granularity=selective", "model.rope_scaling=8.0"),
    "colosseum-355b/sft": LORA,
}
"""Recipes that have every argument between them."""


def container(recipe: Any) -> dict[str, Any]:
    """Arguments of the ConfigContainer of a launch."""
    found: dict[str, Any] = launch_tree(recipe)["with"]["config"]["with"]
    return found


@pytest.mark.parametrize(("name", "words"), [*SHIPPED.items(), *EVERYTHING.items()])
def test_every_call_and_argument_exists(name: str, words: tuple[str, ...], resolved: Resolved) -> None:
    known = reference(REFERENCE)
    for target, arguments in calls(launch_tree(resolved(name, *words))):
        assert set(arguments) <= known[target], target


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_is_launched(name: str, rendered: Rendered) -> None:
    launch = rendered(name, *SHIPPED[name])
    programs = {"start.py", "calls_start.py", "check_config.py"}
    assert set(launch.files) == {*programs, "command.json", TREE}
    assert json.loads(launch.files["command.json"])["arguments"] == [TREE]


def test_the_case_study_in_fp8(resolved: Resolved) -> None:
    found = {key: node["with"] for key, node in container(resolved("colosseum-355b/cpt-fp8", *CPT)).items() if node}
    model, precision = found["model"], found["mixed_precision"]
    layout = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")
    assert [model[key] for key in layout] == [8, 10, 10]
    assert (model["context_parallel_size"], model["sequence_parallel"]) == (4, True)
    assert (model["num_layers"], model["kv_channels"], model["vocab_size"]) == (100, 192, 256000)
    assert (model["overlap_p2p_comm"], model["batch_p2p_comm"], model["tp_comm_overlap"]) == (True, False, False)
    assert (model["defer_embedding_wgrad_compute"], model["wgrad_deferral_limit"]) == (True, 22)
    assert {key: precision[key] for key in precision if key.startswith("fp8")} == {
        "fp8": "hybrid",
        "fp8_recipe": "delayed",
        "fp8_margin": 0,
        "fp8_amax_history_len": 1024,
        "fp8_amax_compute_algo": "max",
        "fp8_wgrad": True,
        "fp8_param_gather": True,
    }
    assert found["train"]["train_iters"] == 400_000_000_000 // (1260 * 16384)
    # Bridge reads the weight decay of its scheduler; its recipes' is 0.033.
    assert (found["scheduler"]["start_weight_decay"], found["scheduler"]["end_weight_decay"]) == (0.1, 0.1)
    # Its recipes save and load in ./nemo_experiments/default: a new run would resume an old one.
    assert (found["checkpoint"]["save"], found["checkpoint"]["load"]) == ("checkpoints", "checkpoints")


def test_the_first_weights_are_named_in_the_first_attempt_alone(resolved: Resolved, tmp_path: Path) -> None:
    recipe = resolved("generic", *CPT, "checkpoint.from=run:parent@20")
    assert container(recipe)["checkpoint"]["with"]["pretrained_checkpoint"] is None
    (tmp_path / TREE).write_text(json.dumps(launch_tree(recipe)))
    tree = calls_start.tree(tmp_path / TREE, first_words(recipe))
    changed = tree["with"]["config"]["with"]["checkpoint"]["with"]
    assert changed["pretrained_checkpoint"] == "../parent/checkpoints/iter_0000020"
    assert first_words(resolved("generic", *CPT, "checkpoint.from=none")) == []


def test_chat_tokens_and_adapters(resolved: Resolved) -> None:
    found = container(resolved("colosseum-355b/sft", *LORA, "checkpoint.from=/c/iter_0000020"))
    data = found["dataset"]["with"]
    assert data["dataset_root"] == "/d"
    assert data["dataset_kwargs"]["special_tokens"]["turn_start"] == "<extra_id_1>"
    assert found["peft"]["with"] == {"target_modules": ["linear_qkv"], "dim": 8, "alpha": 16.0}
    # A resumed run of adapters needs the frozen weights too: Bridge refuses adapters without them.
    assert found["checkpoint"]["with"]["pretrained_checkpoint"] == "/c/iter_0000020"


def test_the_names_of_the_table_are_those_that_a_launch_has(resolved: Resolved) -> None:
    trees = [container(resolved(name, *words)) for name, words in EVERYTHING.items()]
    for field, row in table().items():
        section, dot, rest = row.names["bridge"].partition(".")
        if dot and rest and not section.startswith("("):
            assert any(_reached(tree[section], rest) for tree in trees if tree[section]), field


def _reached(node: Any, path: str) -> bool:
    for name in path.split("."):
        node = node.get("with", node)
        if name not in node:
            return False
        node = node[name]
    return True


@pytest.mark.parametrize(
    ("name", "words", "path", "says"),
    [
        ("colosseum-355b/dpo", CPT, "task.kind", "nemo1"),
        ("colosseum-355b/sft", (*CPT, SFT[3]), "data.train", "training.jsonl"),
        ("colosseum-355b/sft", (*SFT, "checkpoint.from=none"), "checkpoint.from", "finetune()"),
        ("generic", (*LEARNED, "model.max_position_embeddings=8192"), "model.max_position_embeddings", "mcore"),
    ],
)
def test_what_it_cannot_do_is_refused(
    name: str, words: tuple[str, ...], path: str, says: str, resolved: Resolved
) -> None:
    faults = {fault.path: fault for fault in BridgeEngine().faults(resolved(name, *words))}
    assert path in faults
    assert says in faults[path].rule
