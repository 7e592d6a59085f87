"""NeMo 1.x and NeMo-Aligner: every key exists, the case study's values arrive, the rest is refused."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from colosseum.engines import fields
from colosseum.engines.fields import table
from colosseum.engines.nemo1.config import config
from colosseum.engines.nemo1.engine import Nemo1Engine
from colosseum.engines.nemo1.nemo_file import configuration
from colosseum.engines.registry import engine_of
from tests.engines.conftest import Rendered, Resolved

REFERENCE = Path(fields.__file__).parent
NEMO1 = "engine=nemo1"
CPT = (NEMO1, "checkpoint.load=[weights]")
YARN = ("model.rope_scaling=4.0", "model.rope_scaling_type=yarn", "model.original_max_position_embeddings=4096")
YARN += ("model.rotary_percent=1.0", "fusion.rope=false")
TEMPLATES = {"cpt": "nemo1_gpt_config", "sft": "aligner_sft", "dpo": "aligner_dpo"}
SHIPPED = {
    "colosseum-355b/baseline-96": CPT,
    "colosseum-355b/cpt-4k-bf16": CPT,
    "colosseum-355b/cpt-16k-expand": CPT,
    "colosseum-355b/cpt-fp8": CPT,
    "colosseum-355b/sft": ("engine=nemo1",),
    "colosseum-355b/dpo": ("engine=nemo1",),
    "generic": (*CPT, "tokenizer.kind=tokenizer_json", "tokenizer.path=/t/tokenizer.json"),
    "debug-8b/sft": (
        "engine=nemo1",
        "checkpoint.from=/m.nemo",
        "precision.moments_dtype=fp32",
        "data.train_samples=9000",
    ),
}


def reference(name: str) -> set[str]:
    lines = [line for line in (REFERENCE / f"options_{name}.tsv").read_text().splitlines() if not line.startswith("#")]
    return {row["key"] for row in csv.DictReader(lines, delimiter="\t")}


def keys(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from keys(value, f"{prefix}{key}.")
        else:
            yield prefix + key


@pytest.mark.parametrize("name", SHIPPED)
def test_every_key_is_the_template_s_or_is_read_by_nemo(name: str, rendered: Rendered, resolved: Resolved) -> None:
    recipe = resolved(name, *SHIPPED[name])
    rendered(name, *SHIPPED[name])
    known = reference(TEMPLATES[recipe.task.kind]) | reference("nemo1_absent")
    if recipe.task.kind != "cpt":  # merged over the checkpoint's model configuration, which is NeMo's
        known |= {key for key in reference("nemo1_gpt_config") if key.startswith("model.")}
    assert set(keys(config(recipe))) <= known


def test_the_table_marks_what_the_templates_lack() -> None:
    templates = set().union(*(reference(name) for name in TEMPLATES.values()))
    absent = reference("nemo1_absent")
    for field, row in table().items():
        cell = row.names["nemo1"]
        if cell.startswith("+"):
            assert cell[1:] in absent, field
        elif "." in cell[1:] and not cell.startswith("("):
            assert cell in templates, field


def test_the_case_study_s_sft(rendered: Rendered) -> None:
    launch = rendered("colosseum-355b/sft", "engine=nemo1")
    found = yaml.safe_load(launch.files["colosseum/run.yaml"])
    model = found["model"]
    assert model["data"]["chat_prompt_tokens"] == {
        "system_turn_start": "<extra_id_0>",
        "turn_start": "<extra_id_1>",
        "label_start": "<extra_id_2>",
        "end_of_turn": "\n",
        "end_of_name": "\n",
    }
    assert (model["global_batch_size"], model["data"]["num_workers"]) == (140, 0)
    assert model["data"]["train_ds"]["shuffle"] is True
    assert 1e-7 <= model["optim"]["lr"] <= 5e-7
    assert (found["trainer"]["num_nodes"], found["trainer"]["devices"]) == (350, 8)
    assert found["trainer"]["sft"]["max_epochs"] == 1
    command = json.loads(launch.files["command.json"])
    assert command["program"] == "examples/nlp/gpt/train_gpt_sft.py"
    assert command["arguments"] == ["--config-dir=bundle/engine", "+colosseum=run"]
    assert command["total_steps"] == 1_000_000 // 140


def test_the_case_study_s_dpo(rendered: Rendered) -> None:
    found = yaml.safe_load(rendered("colosseum-355b/dpo", "engine=nemo1").files["colosseum/run.yaml"])
    assert found["model"]["dpo"]["ref_policy_kl_penalty"] == 0.2
    assert found["trainer"]["dpo"]["max_epochs"] == 3
    assert found["pretrained_checkpoint"]["restore_from_path"] == "stage:sft"
    assert found["model"]["data"]["data_prefix"]["train"] == ["/lustre/colosseum/data/dpo/train.jsonl"]


def test_the_case_study_s_fp8(resolved: Resolved) -> None:
    model = config(resolved("colosseum-355b/cpt-fp8", *CPT))["model"]
    expected = {
        "fp8": True,
        "fp8_hybrid": True,
        "fp8_e4m3": False,
        "fp8_margin": 0,
        "fp8_interval": 1,
        "fp8_amax_history_len": 1024,
        "fp8_amax_compute_algo": "max",
        "fp8_params": True,
        "fp8_wgrad": True,
        "ub_tp_comm_overlap": False,
        "wgrad_deferral_limit": 22,
        "overlap_p2p_comm": True,
        "batch_p2p_comm": False,
        "virtual_pipeline_model_parallel_size": 10,
        "activation": "squared-relu",
        "normalization": "layernorm1p",
        "override_vocab_size": 256000,
    }
    assert {key: model[key] for key in expected} == expected


def test_hydra_lays_our_values_over_a_template(rendered: Rendered, tmp_path: Path) -> None:
    """A template in the shape of gpt_sft.yaml's; ours is last in the defaults list and wins, also over a list."""
    from hydra import compose, initialize_config_dir

    for name, data in rendered("colosseum-355b/sft", "engine=nemo1").files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    template = {
        "trainer": {"devices": 1, "logger": False},
        "model": {"optim": {"betas": [0.9, 0.9, 0.9]}, "bias": True},
    }
    (tmp_path / "gpt_sft.yaml").write_text(yaml.safe_dump(template))
    with initialize_config_dir(str(tmp_path), version_base=None):
        found = compose("gpt_sft", overrides=["+colosseum=run"])
    assert found.trainer.devices == 8
    assert found.trainer.logger is False
    assert list(found.model.optim.betas) == [0.9, 0.98]
    assert found.model.bias is True
    assert found.model.optim.lr == 3e-7  # a number, not the text that PyYAML makes of 3e-7


@pytest.mark.parametrize(
    ("name", "words", "path", "says"),
    [
        ("dpo", (NEMO1, "parallelism.cp=2", "parallelism.pp=5"), "parallelism.cp", "no context parallelism"),
        ("dpo", (NEMO1, "task.reference=precomputed"), "task.reference", "host"),
        ("sft", (NEMO1, "parallelism.cp=2", "parallelism.pp=5"), "parallelism.cp", "nemo2 can"),
        ("sft", (NEMO1, "checkpoint.from=none"), "checkpoint.from", "needs a checkpoint"),
        ("sft", (NEMO1, "checkpoint.async=true"), "checkpoint.async", "asynchronous"),
        ("cpt-fp8", (*CPT, "precision=fp8-tensorwise"), "precision.fp8", "nemo2"),
        ("cpt-4k-bf16", (*CPT, "precision.moments_dtype=bf16"), "precision.moments_dtype", "megatron-lm"),
        ("cpt-4k-bf16", (*CPT, "checkpoint.from=run:x@100"), "checkpoint.from", "last weights"),
        ("cpt-4k-bf16", (*CPT, "model.qk_layernorm=true"), "model.qk_layernorm", "nemo2"),
        ("cpt-4k-bf16", (*CPT, *YARN), "model.rope_scaling_type", "mcore"),
        ("cpt-4k-bf16", (*CPT, "model.normalization=RMSNorm"), "model.layernorm_zero_centered_gamma", "megatron-lm"),
    ],
)
def test_what_it_cannot_do_is_refused(
    name: str, words: tuple[str, ...], path: str, says: str, resolved: Resolved
) -> None:
    faults = {fault.path: fault for fault in Nemo1Engine().faults(resolved(f"colosseum-355b/{name}", *words))}
    assert list(faults) == [path]
    assert says in faults[path].rule


def test_what_is_kept_is_told(resolved: Resolved) -> None:
    said = Nemo1Engine().notes(resolved("colosseum-355b/cpt-4k-bf16", *CPT))
    assert "NeMo 1.x keeps the last checkpoint and the 3 of lowest validation loss" in said
    assert "NeMo 1.x does not keep every 10,000 steps: checkpoint.keep_every is ignored (mcore has it)" in said
    assert "NeMo-Aligner logs every step: train.log_every_steps is ignored" in Nemo1Engine().notes(
        resolved("colosseum-355b/dpo", "engine=nemo1", "train.log_every_steps=10")
    )
    everything = Nemo1Engine().notes(resolved("colosseum-355b/cpt-4k-bf16", *CPT, "checkpoint.keep_last=null"))
    assert not [text for text in everything if "keep" in text]


@pytest.mark.parametrize(
    ("limit", "says"), [("24h", "00:23:45:00"), ("40m", "00:00:30:00"), ("3-00:00:00", "02:23:45:00")]
)
def test_time_per_run_leaves_room_for_a_save(limit: str, says: str, resolved: Resolved) -> None:
    found = config(resolved("colosseum-355b/sft", "engine=nemo1", f"resources.time_limit={limit}"))
    assert found["exp_manager"]["max_time_per_run"] == says


def test_a_nemo_file_of_another_model_is_refused_on_the_login_node(resolved: Resolved, tmp_path: Path) -> None:
    file = tmp_path / "model_config.yaml"

    def faults(**holds: object) -> dict[str, tuple[object, ...]]:
        file.write_text(yaml.safe_dump(holds))
        recipe = resolved("colosseum-355b/cpt-4k-bf16", *CPT, f"checkpoint.from={tmp_path}")
        return {fault.path: fault.nearest for fault in Nemo1Engine().source_faults(recipe, tmp_path)}

    ours = {"num_layers": 96, "hidden_size": 18432, "num_query_groups": 8, "override_vocab_size": 256000}
    assert faults(**ours) == {}
    assert faults(**ours | {"num_query_groups": None, "ffn_hidden_size": "${multiply:4,${.hidden_size}}"}) == {}
    assert faults(**ours | {"num_layers": 95}) == {"model.num_layers": (95,)}
    assert faults(**ours | {"override_vocab_size": 256128}) == {"model.vocab_size": (256128,)}


@pytest.mark.parametrize("engine", ["nemo1", "nemo2"])
@pytest.mark.parametrize(("every", "refused"), [(50, False), (51, True)])
def test_a_validation_interval_that_lightning_does_not_start_with(
    resolved: Resolved, engine: str, every: int, refused: bool
) -> None:
    words = (
        "train.steps=50",
        "~train.tokens",
        "optimizer.warmup_steps=0",
        f"train.val_every_steps={every}",
        f"engine={engine}",
        *CPT[1:],
    )
    recipe = resolved("colosseum-355b/cpt-4k-bf16", *words)
    found = {fault.path: fault.nearest for fault in engine_of(engine).faults(recipe)}
    assert found == ({"train.val_every_steps": (50,)} if refused else {})


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        b"num_layers: " + b"[" * 5000,
        b"a: &a [1, 1]\nb: &b [*a, *a]\n" + b"c: [" + b"*b, " * 200 + b"*b]\n",
        b"a: 2020-99-99\n" + b"x: " + b"y" * 2_000_000,
        b"\xff\xfe",
        b"!!python/object/apply:os.system [touch owned]",
        b"- 1\n",
        b"",
    ],
    ids=["nested", "aliases", "long", "no-text", "code", "list", "empty"],
)
def test_a_stranger_s_nemo_is_read_with_limits(
    text: bytes, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.nemo"
    if packed:
        with tarfile.open(path, "w:gz") as archive:
            member = tarfile.TarInfo("model_config.yaml")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    else:
        path.mkdir()
        (path / "model_config.yaml").write_bytes(text)
    assert configuration(path) is None
    if packed:  # cut off in the middle
        path.write_bytes(path.read_bytes()[:-9])
        assert configuration(path) is None
    assert not (tmp_path / "owned").exists()


def test_values_that_nemo_works_out_are_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "model_config.yaml").write_text("num_layers: 4\nffn_hidden_size: ${multiply:4,${.hidden_size}}\n")
    assert Nemo1Engine().model_of(tmp_path) == {"num_layers": 4}
