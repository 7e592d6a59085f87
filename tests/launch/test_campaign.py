"""Campaign files, and what a gate says of a checkpoint. No job is started."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from colosseum.bundle import read_bundle, write_bundle
from colosseum.checkpoint.metadata import CheckpointMetadata, Layout, ModelShape
from colosseum.errors import RefusedInput
from colosseum.launch.bundles.compile import compile_bundle
from colosseum.launch.campaigns.campaign import begin, find, plan, read, remarks
from colosseum.launch.campaigns.file import read_file
from colosseum.launch.campaigns.gate import judge, lineage
from colosseum.planning.resolve import apply_layout, resolve
from colosseum.recipe.load import load
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import FromRun, FromStage
from colosseum.rundir import CHECKPOINT_MARK, RunDir, append_line, checkpoint_folder
from tests.cli.conftest import TOKENIZER, write_tokens

GOOD = """
name: c
stages:
  - {name: a, recipe: debug/cpt-4k-bf16, overrides: [train.steps=20]}
  - {name: b, recipe: debug/cpt-4k-bf16, overrides: ["checkpoint.from=stage:a"]}
"""


@pytest.mark.parametrize("name", ["colosseum-355b", "debug"])
def test_shipped_campaigns_hand_over_from_stage_to_stage(name: str) -> None:
    stages = read_file(name).stages
    assert [s.name for s in stages] == ["bf16-4k", "expand-16k", "fp8", "sft", "dpo"]
    sources = [load(s.recipe, s.overrides).recipe.checkpoint.source for s in stages]
    assert sources[1:] == [FromStage(s.name) for s in stages[:-1]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: c\nstages: []", "needs at least one stage, and each needs its own name"),
        (
            "name: c\nstages: [{name: a, recipe: x}, {name: a, recipe: x}]",
            "needs at least one stage, and each needs its own name",
        ),
        ("name: c\nstages: [{name: a, recipe: x, runs: 3}]", "stages.0.runs"),
        ("name: ../../etc\nstages: [{name: a, recipe: x}]", "name = '../../etc'"),
        ("name: c\nstages: &s [{name: a, recipe: x}]\nmore: *s", "more"),
        ("name: [", "invalid YAML"),
        ("x" * 1_100_000, "larger than 1 MB"),
        ("[" * 50_000, "maximum nesting depth"),
        ("\udcff", "must be UTF-8"),
        ("!!python/object/apply:os.system [true]", "tag"),
    ],
)
def test_faulty_campaign_files(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RefusedInput) as refused:
        read_file(str(file))
    assert sentence in str(refused.value)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    for name in ("languages", "english", "code"):
        write_tokens(tmp_path / "data" / "demo" / name)
    (tmp_path / "data" / "demo" / "tokenizer.json").write_text(TOKENIZER)
    (tmp_path / "c.yaml").write_text(GOOD)
    return tmp_path


def _begin(house: Path, *words: str) -> Any:
    file = read_file(str(house / "c.yaml"))
    return begin(file, words, cluster="dev-slurm", runs=house / "runs", base=house)


def test_every_stage_begins_from_the_run_of_the_one_before(house: Path) -> None:
    campaign = _begin(house)
    first, second = campaign.stages
    assert (first.source, second.source) == (None, "a")
    assert read_bundle(campaign.run_of(second).bundle).recipe.checkpoint.source == FromRun(first.run)
    assert _begin(house) == campaign == read(campaign.root) == find("c", house / "runs")
    with pytest.raises(RefusedInput, match="started with other stages or overrides"):
        _begin(house, "optimizer.lr=1e-5")


@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_folders_of_a_campaign_and_its_runs_have_the_modes_of_runs(house: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        _begin(house)
    finally:
        os.umask(before)
    made = {p: p.lstat().st_mode & 0o777 for p in (house / "runs").rglob("*") if not p.is_symlink()}
    assert {mode for path, mode in made.items() if path.is_dir()} == {0o750}
    assert {mode & 0o666 for path, mode in made.items() if not path.is_dir()} == {0o640}


def test_a_fault_of_the_last_stage_comes_before_the_first_is_made(house: Path) -> None:
    (house / "c.yaml").write_text(GOOD + "  - {name: d, recipe: debug/cpt-4k-bf16, overrides: [batch.gbs=3]}\n")
    with pytest.raises(RefusedInput) as refused:
        _begin(house)
    (fault,) = refused.value.faults
    assert fault.path == "batch.gbs"
    assert fault.rule.startswith("stage d: ")
    assert not list((house / "runs").glob("*/bundle"))


def test_a_stage_names_one_before_it(house: Path) -> None:
    (house / "c.yaml").write_text(GOOD.replace("stage:a", "stage:z"))
    with pytest.raises(RefusedInput) as refused:
        _begin(house)
    (fault,) = refused.value.faults
    assert (fault.path, fault.value, fault.nearest) == ("checkpoint.from", "stage:z", ("a",))


# --- gates ---


def _run(runs: Path, name: str, *words: str) -> tuple[RunDir, Recipe]:
    recipe = load("debug/cpt-4k-bf16", [f"name={name}", "train.steps=20", *words], cluster="dev-slurm").recipe
    plan = resolve(recipe)
    compiled = compile_bundle(apply_layout(recipe, plan.layout), plan)
    run = RunDir(runs / name)
    write_bundle(run.bundle, compiled.files, compiled.manifest)
    return run, compiled.recipe


def _save(run: RunDir, recipe: Recipe, step: int = 20, **fields: Any) -> None:
    data = {
        "step": step,
        "consumed_samples": step * 16,
        "consumed_tokens": step * 16 * 256,
        "layout": Layout(tp=1, pp=1, vpp=1, cp=1, dp=1),
        "model": ModelShape.of(recipe),
        "dtype": "fp32",
        "fp8": "none",
        "sharded_optimizer": True,  # as one rank writes it
        "tokens_by_source": {"english": step * 16 * 256},
        "sample_order": "x",
        "recipe_hash": "0" * 64,
        "run_id": run.root.name,
        "versions": {},
        "save_time_s": 1.0,
        "files": {},
    }
    mark = checkpoint_folder(run.checkpoints, step) / CHECKPOINT_MARK
    mark.parent.mkdir(parents=True)
    mark.write_text(CheckpointMetadata(**(data | fields)).model_dump_json(by_alias=True))
    append_line(run.ledger, {"step": step, "attempt": 0, "tokens_by_source": {"english": step * 16 * 256}})


def _complete(run: RunDir) -> None:
    run.attempt(0).root.mkdir(parents=True)
    run.attempt(0).write_outcome("completed", retry=False, step=20, last_saved_step=20, rank=0, reason="")


@pytest.fixture
def parent(tmp_path: Path) -> tuple[RunDir, Recipe]:
    run, recipe = _run(tmp_path, "parent")
    _complete(run)
    return run, recipe


def test_a_gate_lets_the_right_checkpoint_through(tmp_path: Path, parent: tuple[RunDir, Recipe]) -> None:
    _save(*parent, sharded_optimizer=False)  # the child's is: a load converts it
    run, _ = _run(tmp_path, "child", "checkpoint.from=run:parent", "batch.seq_length=512")
    verdict = judge(run)
    assert verdict.faults == ()
    assert verdict.notes == ("seq_length 256 → 512",)
    (ancestor,) = verdict.lineage
    assert (ancestor.run, ancestor.step, ancestor.consumed_tokens) == ("parent", 20, 81920)
    assert "english 81.9K" in ancestor.sentence()


@pytest.mark.parametrize(
    ("fields", "words", "sentence"),
    [
        ({"step": 15}, (), "at step 15, not at its last step 20"),
        ({"dtype": "bf16"}, (), "the checkpoint is bf16, the recipe fp32: load weights only"),
        ({"tokens_by_source": {"english": 1}}, (), "disagree on the tokens of step 20"),
        ({}, ("model.num_layers=2",), "num_layers 4 (the recipe says 2)"),
        ({}, ("model.hidden_size=256",), "hidden_size"),
    ],
)
def test_a_gate_refuses(
    tmp_path: Path, parent: tuple[RunDir, Recipe], fields: dict[str, Any], words: tuple[str, ...], sentence: str
) -> None:
    _save(*parent, **fields)
    run, _ = _run(tmp_path, "child", "checkpoint.from=run:parent", *words)
    assert any(sentence in fault for fault in judge(run).faults)


def test_a_gate_asks_for_scores(tmp_path: Path, parent: tuple[RunDir, Recipe]) -> None:
    """A validation loss, and a score that nobody has computed: the figures and the command are in the verdict."""
    _save(*parent)
    append_line(parent[0].metrics, {"kind": "val", "step": 20, "attempt": 0, "loss": 2.5})
    run, _ = _run(tmp_path, "child", "checkpoint.from=run:parent")
    run.gate_conditions.write_text(json.dumps({"conditions": {"val_loss": "<= 2.6", "ifeval": ">= 30%"}}))
    verdict = judge(run)
    assert verdict.notes == ("gate val_loss <= 2.6 holds: parent@20 2.5000 (step 20); limit 2.6000",)
    assert verdict.faults == (
        "gate ifeval >= 30%: parent@20 was not evaluated: "
        "colosseum evaluate parent@20 --tasks ifeval, then resume the campaign",
    )
    run.gate_conditions.write_text(json.dumps({"conditions": {"val_loss": "<= 2.4"}}))
    assert judge(run).faults == ("gate val_loss <= 2.4 fails: parent@20 2.5000 (step 20); limit 2.4000",)


def test_a_campaign_keeps_the_conditions_of_its_gates(house: Path) -> None:
    (house / "c.yaml").write_text(GOOD.replace('stage:a"]', 'stage:a"], gate: {ifeval: ">= parent - 1pt"}'))
    campaign = _begin(house)
    second = campaign.stages[1]
    assert json.loads(campaign.run_of(second).gate_conditions.read_text())["conditions"] == {
        "ifeval": ">= parent - 1pt"
    }
    assert read(campaign.root) == campaign
    (house / "c.yaml").write_text(GOOD)
    with pytest.raises(RefusedInput, match="started with other stages or overrides"):
        _begin(house)
    (house / "d.yaml").write_text(GOOD.replace("train.steps=20]", "train.steps=20], gate: {ifeval: '>= 1%'}"))
    with pytest.raises(RefusedInput, match="needs a checkpoint of an earlier stage"):
        plan(read_file(str(house / "d.yaml")), (), cluster="dev-slurm", root=house / "runs", base=house, dry=True)


def test_a_gate_refuses_what_is_not_finished(tmp_path: Path) -> None:
    unfinished, _ = _run(tmp_path, "parent")
    run, _ = _run(tmp_path, "child", "checkpoint.from=run:parent")
    assert judge(run).faults == ("parent has not reached its last step", "parent has no complete checkpoint")
    checkpoint_folder(unfinished.checkpoints, 20).mkdir(parents=True)
    assert "parent has no complete checkpoint" in judge(run).faults


def test_a_gate_after_a_foreign_engine_goes_by_its_recipe(tmp_path: Path) -> None:
    run, _ = _run(tmp_path, "parent", "engine=megatron-lm", "hardware=h100-sxm")
    same = ("engine=megatron-lm", "hardware=h100-sxm", "checkpoint.from=run:parent", "checkpoint.load=[weights]")
    child, _ = _run(tmp_path, "child", *same)
    grown, _ = _run(tmp_path, "grown", *same, "model.num_layers=6")
    other, _ = _run(tmp_path, "other", "checkpoint.from=run:parent")
    assert "checkpoint.load" in judge(other).faults[-1], "what is converted holds weights only"
    assert judge(child).faults == (
        "parent has not reached its last step",
        "parent saved no checkpoint to start from",
    )
    _complete(run)
    checkpoint_folder(run.checkpoints, 20).mkdir(parents=True)
    (run.checkpoints / "latest_checkpointed_iteration.txt").write_text("20")
    assert judge(child).passed
    assert "megatron-lm's: only its recipe was compared" in judge(child).notes[0]
    assert judge(grown).faults == ("the model of the previous run differs: num_layers 4 (the recipe says 6)",)


@pytest.mark.parametrize("packed", [False, True])
def test_a_gate_reads_the_configuration_of_a_nemo_file(tmp_path: Path, packed: bool) -> None:
    words = ("engine=nemo1", "hardware=h100-sxm", "checkpoint.load=[weights]", "train.val_every_steps=20")
    run, recipe = _run(tmp_path, "parent", *words)
    grown, _ = _run(tmp_path, "grown", *words, "checkpoint.from=run:parent", "model.num_layers=6")
    _complete(run)
    nemo = run.root / "nemo/checkpoints/model.nemo"

    def leave(layers: int) -> None:
        config = {"num_layers": layers, "hidden_size": recipe.model.hidden_size, "num_query_groups": None}
        text = yaml.safe_dump(config).encode()
        nemo.parent.mkdir(parents=True, exist_ok=True)
        if packed:
            with tarfile.open(nemo, "w") as archive:
                member = tarfile.TarInfo("./model_config.yaml")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
        else:
            nemo.mkdir(exist_ok=True)
            (nemo / "model_config.yaml").write_bytes(text)

    leave(4)
    first, second = judge(grown).faults
    assert first == f"the model in {nemo} differs: num_layers 4 (recipe: 6)"
    assert "put the result in its place" in second
    leave(6)
    assert judge(grown).passed
    assert "its configuration was compared" in judge(grown).notes[0]


def test_the_355b_chain_goes_through_nemo1_from_end_to_end(tmp_path: Path) -> None:
    file = read_file("colosseum-355b")
    planned = plan(file, ["engine=nemo1"], cluster="dgx-h100", root=tmp_path, base=tmp_path, dry=True)
    assert [compiled.recipe.engine for _, compiled in planned] == ["nemo1"] * 5
    loads = {stage.name: compiled.recipe.checkpoint.load for stage, compiled in planned}
    assert {name for name, load in loads.items() if load != ("weights",)} == {"fp8"}
    runs = {stage.name: stage.run for stage, _ in planned}
    for stage, compiled in planned[1:]:
        config = yaml.safe_load(compiled.files["engine/colosseum/run.yaml"])
        section = config["pretrained_checkpoint"] if stage.name == "dpo" else config["model"]
        assert section["restore_from_path"] == f"../{runs[stage.source or '']}/nemo/checkpoints/model.nemo"
    said = remarks(file, {stage.name: (stage, compiled.recipe) for stage, compiled in planned})
    (dropped,) = (text for text in said if "Adam's moments begin at zero" in text)
    assert dropped.startswith("stage fp8: checkpoint.load = ")
    assert any(text.startswith("stage expand-16k: has 100 layers and bf16-4k has 96") for text in said)
    assert any(text.startswith("stages expand-16k, fp8: NeMo 1.x does not keep every 2,000 steps") for text in said)
    assert not list(tmp_path.iterdir())


MIXED = """
name: c
stages:
  - {{name: a, recipe: colosseum-355b/cpt-4k-bf16, overrides: [engine={first}, "checkpoint.load=[weights]"]}}
  - {{name: b, recipe: colosseum-355b/{recipe}, overrides: ["checkpoint.from=stage:a", engine={second}{more}]}}
"""


@pytest.mark.parametrize(("first", "kind"), [("nemo1", "nemo"), ("megatron-lm", "megatron")])
@pytest.mark.parametrize("recipe", ["cpt-16k-expand", "sft"])
def test_a_campaign_converts_what_another_engine_left(tmp_path: Path, first: str, kind: str, recipe: str) -> None:
    (tmp_path / "c.yaml").write_text(MIXED.format(first=first, second="mcore", recipe=recipe, more=""))
    file = read_file(str(tmp_path / "c.yaml"))
    planned = plan(file, [], cluster="dgx-h100", root=tmp_path, base=tmp_path, dry=True)
    assert [compiled.recipe.engine for _, compiled in planned] == [first, "mcore"]
    said = remarks(file, {stage.name: (stage, compiled.recipe) for stage, compiled in planned})
    converts = f"stage b: its gate starts it from a checkpoint converted from engine {first}'s checkpoint"
    assert any(text.startswith(converts) and f"import {kind}" in text for text in said)
    assert any("its gate expands that checkpoint" in text for text in said), "both have 96 layers, and 100"


@pytest.mark.parametrize(
    ("first", "second", "more", "sentence"),
    [
        ("megatron-lm", "nemo1", "", "no conversion from megatron-lm to nemo1"),
        ("mcore", "megatron-lm", "", "no conversion from mcore to megatron-lm"),
        ("nemo1", "mcore", ', "checkpoint.load=[weights,optimizer]"', "holds weights only"),
    ],
)
def test_what_a_campaign_does_not_convert(tmp_path: Path, first: str, second: str, more: str, sentence: str) -> None:
    text = MIXED.format(first=first, second=second, recipe="cpt-16k-expand", more=more)
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(RefusedInput, match=sentence) as refused:
        plan(read_file(str(tmp_path / "c.yaml")), [], cluster="dgx-h100", root=tmp_path, base=tmp_path, dry=True)
    assert refused.value.faults[0].rule.startswith("stage b: ")


def test_a_command_s_own_word_wins_over_the_campaign_s(tmp_path: Path) -> None:
    stage = "{name: a, recipe: generic, for_engine: {megatron-lm: [train.seed=7, optimizer.lr=2.0e-4]}}"
    (tmp_path / "c.yaml").write_text(f"name: c\nstages: [{stage}]\n")
    words = ["engine=megatron-lm", "train.seed=9"]
    file = read_file(str(tmp_path / "c.yaml"))
    ((_, made),) = plan(file, words, cluster="dgx-h100", root=tmp_path, base=tmp_path, dry=True)
    assert (made.recipe.train.seed, made.recipe.optimizer.lr) == (9, 2e-4)


def test_lineage_goes_back_to_the_first_run(tmp_path: Path, parent: tuple[RunDir, Recipe]) -> None:
    _save(*parent)
    child, recipe = _run(tmp_path, "child", "checkpoint.from=run:parent")
    child.gate.write_text(json.dumps({"lineage": [{"run": "parent", "step": 20}]}))
    _save(child, recipe, step=7)
    assert [(a.run, a.step) for a in lineage(child, 7)] == [("parent", 20), ("child", 7)]


def test_a_stage_that_changes_the_engine_is_refused_with_the_conversion_that_is_missing(house: Path) -> None:
    words = "engine=megatron-lm, hardware=h100-sxm, 'checkpoint.load=[weights]'"
    (house / "c.yaml").write_text(GOOD.replace('"checkpoint.from=stage:a"', f'"checkpoint.from=stage:a", {words}'))
    with pytest.raises(RefusedInput) as refused:
        _begin(house)
    assert "stage b: engine megatron-lm does not read engine mcore's checkpoints" in str(refused.value)
    assert not list((house / "runs").glob("*/bundle"))


def test_the_shipped_355b_chain_stays_on_our_engine(tmp_path: Path) -> None:
    planned = plan(read_file("colosseum-355b"), [], cluster="dgx-h100", root=tmp_path, base=tmp_path, dry=True)
    assert [compiled.recipe.engine for _, compiled in planned] == ["mcore"] * 5
    assert [compiled.recipe.task.kind for _, compiled in planned] == ["cpt", "cpt", "cpt", "sft", "dpo"]
    assert [compiled.recipe.checkpoint.load for _, compiled in planned[3:]] == [("weights",)] * 2
    said = remarks(read_file("colosseum-355b"), {s.name: (s, compiled.recipe) for s, compiled in planned})
    assert any("has 100 layers and bf16-4k has 96: its gate expands that checkpoint" in text for text in said)
