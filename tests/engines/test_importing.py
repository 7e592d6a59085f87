"""What an engine renders, an import reads back; misspelt keys are found; a script is read and never run."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from colosseum.engines.importers import import_file, recipe_text
from colosseum.engines.importing import HARMLESS, MISSING, OPEN, REFUSED, UNKNOWN, UNREAD
from colosseum.engines.megatron_lm import importer as import_megatron
from colosseum.engines.nemo1 import importer as import_nemo1
from colosseum.launch.runs.submit import prepare
from colosseum.recipe.load import load
from colosseum.recipe.rules_base import value_at
from colosseum.recipe.schema import Recipe
from tests.engines.conftest import Rendered, Resolved

NEMO1 = ("engine=nemo1", "checkpoint.load=[weights]")
MEGATRON = ("engine=megatron-lm", "checkpoint.load=[weights]")
# Said otherwise, or not at all, by the foreign side.
NAMELESS = {"name", "train.tokens", "checkpoint.keep_last", "data.cache_dir"}
NAMELESS |= {"resources.time_limit"}  # NeMo's own limit leaves room for the last save


def differing(recipe: Recipe, fields: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Fields that were read otherwise than they were rendered, but for defaults that are spelled out (null = 4h …)."""
    model = recipe.model
    spelled = {
        "model.ffn_hidden_size": model.ffn,
        "model.num_query_groups": model.query_groups,
        "model.kv_channels": model.head_dim,
        "model.max_position_embeddings": recipe.batch.seq_length,
    }
    found = {}
    for path, value in fields.items():
        if path in NAMELESS or path.startswith(("task.chat", "train.steps", "data.blend", "tokenizer")):
            continue
        expected = spelled.get(path, value_at(recipe, path))
        expected = str(expected) if path == "checkpoint.from" else expected
        if expected != value and not (path in spelled and value is None):
            found[path] = (expected, value)
    return found


@pytest.mark.parametrize("name", ["baseline-96", "cpt-4k-bf16", "cpt-16k-expand", "cpt-fp8"])
def test_nemo1_comes_back(name: str, rendered: Rendered, resolved: Resolved) -> None:
    text = rendered(f"colosseum-355b/{name}", *NEMO1).files["colosseum/run.yaml"]
    found = import_nemo1.read(yaml.safe_load(text))
    recipe = resolved(f"colosseum-355b/{name}", *NEMO1)
    rows_as_they_are = {"model.make_vocab_size_divisible_by": (128, 1)}
    assert differing(recipe, found.fields) == rows_as_they_are
    assert found.fields["data.blend"] == [{"path": e.path, "weight": e.weight} for e in recipe.data.blend]
    assert found.of(REFUSED, *OPEN) == []


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_aligner_comes_back(name: str, rendered: Rendered, resolved: Resolved) -> None:
    found = import_nemo1.read(
        yaml.safe_load(rendered(f"colosseum-355b/{name}", "engine=nemo1").files["colosseum/run.yaml"])
    )
    assert differing(resolved(f"colosseum-355b/{name}", "engine=nemo1"), found.fields) == {}
    assert found.fields["task.kind"] == name
    assert found.of(REFUSED, *OPEN) == []
    assert found.fields["data.train"].endswith(f"{name}/train.jsonl")


@pytest.mark.parametrize("name", ["baseline-96", "cpt-4k-bf16", "cpt-16k-expand", "cpt-fp8"])
def test_megatron_comes_back_out_of_a_job_script(name: str, rendered: Rendered, resolved: Resolved) -> None:
    command = json.loads(rendered(f"colosseum-355b/{name}", *MEGATRON).files["command.json"])
    words = [*command["arguments"], *command["first"]]
    half = next(i for i in range(len(words) // 2, len(words)) if words[i].startswith("--"))
    script = f"""#!/bin/bash
#SBATCH --nodes=360
#SBATCH --gpus-per-node 8
GPT_ARGS=(
    {shlex.join(words[:half])}   # a comment
)
OTHER="{shlex.join(words[half:])}"
srun torchrun --nproc_per_node 8 pretrain_gpt.py \\
    ${{GPT_ARGS[@]}} \\
    $OTHER
"""
    found = import_megatron.read(script)
    recipe = resolved(f"colosseum-355b/{name}", *MEGATRON)
    assert differing(recipe, found.fields) == {}
    assert found.fields["data.blend"] == [{"path": e.path, "weight": e.weight} for e in recipe.data.blend]
    assert found.fields["model.vocab_size"] == 256000
    assert found.fields["resources.gpus"] == 2880
    assert found.of(REFUSED, MISSING, *OPEN) == []


@pytest.mark.parametrize(
    "words",
    [
        ("optimizer.lr_schedule=wsd", "optimizer.wsd_decay_steps=500", "optimizer.wsd_decay=minus_sqrt"),
        ("optimizer.decay_steps=900", "optimizer.lr_schedule=linear"),
    ],
)
def test_schedules_come_back(words: tuple[str, ...], rendered: Rendered, resolved: Resolved) -> None:
    name, words = "colosseum-355b/cpt-4k-bf16", (*MEGATRON, *words)
    command = json.loads(rendered(name, *words).files["command.json"])
    found = import_megatron.read(shlex.join([*command["arguments"], *command["first"]]))
    assert differing(resolved(name, *words), found.fields) == {}
    assert {"optimizer.decay_steps", "optimizer.wsd_decay_steps"} & found.fields.keys()


@pytest.mark.parametrize(("rows", "tp"), [(50304, 1), (50304, 4), (50304, 8), (256000, 16), (32003, 1)])
def test_rows_that_a_nemo_1_file_overrides_are_kept_at_any_tp(rows: int, tp: int, tmp_path: Path) -> None:
    """NeMo takes ``override_vocab_size`` as the padded size; 50304 is no multiple of 128 * 4."""
    file = tmp_path / "theirs.yaml"
    file.write_text(NEMO1_FILE.format(rows=rows))
    text = recipe_text(import_file("nemo1", file), "nemo1", file, "h100-sxm")
    mine = tmp_path / "mine.yaml"
    mine.write_text(text)
    words = [f"parallelism.tp={tp}", "resources.gpus=16", "checkpoint.load=[weights]"]
    made = prepare(load(str(mine), words, cluster="dgx-h100").recipe, tmp_path)
    assert made.recipe.model.padded_vocab(tp) == rows
    config = yaml.safe_load(made.files["engine/colosseum/run.yaml"])
    assert config["model"]["override_vocab_size"] == rows


NEMO1_FILE = """
name: small
trainer: {{num_nodes: 2, devices: 8, precision: bf16, max_steps: 6000}}
model:
  micro_batch_size: 1
  global_batch_size: 64
  encoder_seq_length: 2048
  num_layers: 16
  hidden_size: 1024
  ffn_hidden_size: 4096
  num_attention_heads: 16
  make_vocab_size_divisible_by: 128
  override_vocab_size: {rows}
  tokenizer: {{library: sentencepiece, model: /shared/tok/spm.model}}
  optim: {{name: mcore_distributed_optim, sched: {{name: CosineAnnealing, constant_steps: 0}}}}
  data: {{data_prefix: [1.0, /shared/text_document], splits_string: "98,1,1", seq_length: 2048}}
"""


def test_without_an_override_the_padding_unit_is_read() -> None:
    found = import_nemo1.read({"model": {"make_vocab_size_divisible_by": 64}}).fields
    assert found["model.make_vocab_size_divisible_by"] == 64
    assert import_nemo1.read({"model": {"num_layers": 4}}).fields["model.make_vocab_size_divisible_by"] == 128


def test_misspelt_and_unused_keys_are_told() -> None:
    data = {
        "trainer": {"devices": 8, "num_nodes": 2},
        "model": {"num_layers": 4, "determinstic_mode": False, "nsys_profile": {"enabled": True}},
    }
    found = {f.key: f for f in import_nemo1.read(data).findings}
    assert found["model.determinstic_mode"].kind == UNKNOWN
    assert found["model.determinstic_mode"].nearest[0] == "model.deterministic_mode"
    assert found["model.nsys_profile.enabled"].kind == HARMLESS
    words = import_megatron.read("--num-layers 4 --tensor-model-paralel-size 2 --log-params-norm")
    found = {f.key: f for f in words.findings}
    assert found["--tensor-model-paralel-size"].nearest[0] == "--tensor-model-parallel-size"
    assert found["--log-params-norm"].kind == HARMLESS


def test_what_is_left_out_has_the_other_tool_s_default() -> None:
    assert import_megatron.read("--num-layers 4").fields["optimizer.beta2"] == 0.999
    assert import_nemo1.read({"model": {"num_layers": 4}}).fields["optimizer.beta2"] == 0.98
    assert import_nemo1.read({"model": {"num_layers": 4}}).fields["optimizer.lr"] == 2e-4


def test_interleaving_of_either_spelling() -> None:
    words = "--num-layers 96 --pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 1"
    assert import_megatron.read(words).fields["parallelism.vpp"] == 12


def test_a_script_is_read_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET_LR", "0.5")
    script = (
        'A="$(touch owned)"\nB=`touch owned`\nC="$C $C"\npretrain_gpt.py --num-layers 2 --lr $SECRET_LR --seed $C $A $B'
    )
    found = import_megatron.read(script)
    assert list(tmp_path.iterdir()) == []
    assert "optimizer.lr" not in found.fields  # the environment is not looked at
    assert found.fields["model.num_layers"] == 2


SCRIPT = r"""#!/bin/bash
#SBATCH -N 4
#SBATCH --gres=gpu:h100:8
set -euo pipefail
PROGRAM=/opt/megatron-lm/pretrain_gpt.py   # not pretrain_bert.py
TP=${TP:-8}; RATE=${1:-3e-4}
readonly CORPUS='/data/a text_document'
MODEL_ARGS=(
    --num-layers 32   # layers (all)
    --global-batch-size $((8*16))
    --train-samples 10000
)
MODEL_ARGS+=(--hidden-size 4096)
OPTIONS=" \
    --lr $RATE --min-lr=3e-5 --tensor-model-paralel-size $TP"
OPTIONS="$OPTIONS --seed 7"
OPTIONS+=" --split 99,1,0"
[ -f "$PROGRAM" ] || exit 1
cmd="torchrun --nproc_per_node 8 $PROGRAM ${MODEL_ARGS[*]} $OPTIONS --save $CKPT --data-cache-path $CACHE"
srun --container-image /img.sqsh bash -c "$cmd"
echo --lr 9
"""


def test_a_job_script_as_people_write_them() -> None:
    found = import_megatron.read(SCRIPT)
    expected = {"model.num_layers": 32, "model.hidden_size": 4096, "optimizer.lr": 3e-4, "optimizer.min_lr": 3e-5}
    expected |= {"train.seed": 7, "data.split": "99,1,0", "resources.gpus": 32}
    assert {key: found.fields.get(key) for key in expected} == expected
    told = {finding.key: finding.kind for finding in found.findings}
    assert told == {
        "--tensor-model-paralel-size": UNKNOWN,
        "--data-cache-path": UNREAD,
        "--save": HARMLESS,
    }
    assert found.fields["batch.gbs"] == 128
    assert "data.cache_dir" not in found.fields


def test_lengths_in_samples_are_steps() -> None:
    found = import_megatron.read("--global-batch-size 1536 --train-samples 1000000 --lr-warmup-samples 3840 --lr 1")
    assert (found.fields["train.steps"], found.fields["optimizer.warmup_steps"]) == (651, 2)
    assert found.findings == []


@pytest.mark.parametrize(
    "text",
    [
        'A="$A$A"\n' * 500 + "pretrain_gpt.py --lr $A",
        "A=${" * 20_000,
        "A=(x(y(z" * 10_000,
        "A='\"" * 20_000,
        "pretrain_gpt.py " * 20_000,
    ],
    ids=["doubling", "braces", "brackets", "quotes", "programs"],
)
def test_a_hostile_script_is_read_in_no_time(text: str) -> None:
    began = time.process_time()
    assert "optimizer.lr" not in import_megatron.read(text).fields
    assert time.process_time() - began < 10


def test_references_inside_the_file_are_followed() -> None:
    data = {
        "exp_manager": {"explicit_log_dir": "${oc.env:LOGS}"},
        "model": {
            "micro_batch_size": "${multiply:2,2}",
            "encoder_seq_length": 8192,
            "tensor_model_parallel_size": "${.pipeline_model_parallel_size}",
            "pipeline_model_parallel_size": "${trainer.num_nodes}",
            "optim": {"min_lr": 1, "lr": "${model.optim.lr}"},
            "data": {"data_prefix": {"train": [0.5, "/a", 0.5, "/b"]}, "num_workers": "${..num_layers}"},
        },
        "trainer": {"num_nodes": 4, "devices": 8},
    }
    found = import_nemo1.read(data)
    assert (found.fields["parallelism.tp"], found.fields["parallelism.pp"]) == (4, 4)
    assert [entry["path"] for entry in found.fields["data.blend"]] == ["/a", "/b"]
    assert not {"batch.mbs", "optimizer.lr"} & found.fields.keys()
    unread = [finding.key for finding in found.findings if finding.kind == UNREAD]
    assert unread == ["model.micro_batch_size", "model.optim.lr"]


def test_an_empty_yaml_has_the_templates_defaults_and_no_text_for_null() -> None:
    found = import_nemo1.read({"model": {}})
    assert "None" not in found.fields.values()
    assert found.fields["parallelism.vpp"] == 1


@pytest.mark.parametrize(
    "data",
    [
        {"trainer": {"devices": "auto", "num_nodes": "x", "gradient_clip_val": "abc", "max_steps": []}},
        {"model": {"optim": {"betas": 0.9, "name": [1], "sched": {"name": ["x"]}}, "activation": ["x"]}},
        {"model": {"data": {"data_prefix": [[1], "/a", {}]}, "tokenizer": {"library": [], "model": 3}}},
        {"model": [1], "trainer": 3, "exp_manager": None, "name": {"a": 1}, 1: 2},
        {"trainer": {"sft": {"max_steps": "x", "limit_val_batches": {}}}, "model": {"optim": {"betas": []}}},
    ],
)
def test_a_yaml_of_odd_values_is_read_all_the_same(data: dict[Any, Any]) -> None:
    assert import_nemo1.read(data).fields["engine"] == "nemo1"
