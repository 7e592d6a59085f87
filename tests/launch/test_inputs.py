"""What a launch refuses on the login node, instead of the job after its time in the queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from colosseum.checkpoint.folders import checksums, commit, prepare_step
from colosseum.checkpoint.metadata import ModelShape
from colosseum.data.indexed import write_dataset
from colosseum.launch.bundles import inputs
from colosseum.launch.runs.submit import prepare
from colosseum.recipe import derived
from colosseum.recipe.load import load
from colosseum.rundir import CHECKPOINT_MARK, RunDir, checkpoint_folder
from tests.checkpoint.test_folders import CONTENT, metadata
from tests.cli.conftest import TOKENIZER, write_tokens

GPU = ("hardware=h100-sxm", "checkpoint.load=[weights]", "fusion.cross_entropy=false")


def faults(folder: Path, *words: str) -> list[tuple[str, str]]:
    """Path and rule of what a launch of the debug recipe from inside ``folder`` would refuse."""
    if not (folder / "tokens.idx").exists():
        write_tokens(folder / "tokens")
    (folder / "tokenizer.json").write_text(TOKENIZER)
    house = (f"data.blend=[{{path: {folder / 'tokens'}, weight: 1}}]", f"tokenizer.path={folder / 'tokenizer.json'}")
    house += ("optimizer.warmup_steps=0",)
    recipe = load("debug/cpt-4k-bf16", (*house, *words), cluster="local").recipe
    return [(fault.path, fault.rule) for fault in inputs.missing(recipe, folder)]


def saved(root: Path, *steps: int) -> RunDir:
    """A run of the debug recipe with finished checkpoints."""
    run, recipe = RunDir(root), load("debug/cpt-4k-bf16", cluster="local").recipe
    run.bundle.mkdir(parents=True)
    own = {"model": ModelShape.of(recipe), "dtype": recipe.precision.dtype, "sharded_optimizer": True}
    for step in steps:
        folder = prepare_step(run.checkpoints, step, 0)
        for name, data in CONTENT.items():
            (folder / name).write_bytes(data)
        commit(run.checkpoints, step, metadata(step, checksums(folder, CONTENT)).model_copy(update=own))
    return run


def test_a_finished_checkpoint_is_taken_however_it_is_named(tmp_path: Path) -> None:
    run = saved(tmp_path / "parent", 4, 8)
    for source in ("run:parent", "run:parent@4", run.root, checkpoint_folder(run.checkpoints, 8)):
        assert faults(tmp_path, f"checkpoint.from={source}", "train.steps=9") == []


@pytest.mark.parametrize("source", ["run:parent", "run:parent@8", "{run}", "{run}/checkpoints/iter_0000008"])
def test_a_checkpoint_that_is_not_finished_is_refused(tmp_path: Path, source: str) -> None:
    run = saved(tmp_path / "parent")
    folder = prepare_step(run.checkpoints, 8, 0)
    (folder / "__0_0.distcp").write_bytes(b"abc")
    ((path, rule),) = faults(tmp_path, f"checkpoint.from={source.format(run=run.root)}")
    assert path == "checkpoint.from"
    assert any(text in rule for text in ("has no complete", "is not a complete", "has saved no checkpoint"))


@pytest.mark.parametrize("damage", ["size", "mark", "missing"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: str) -> None:
    folder = checkpoint_folder(saved(tmp_path / "parent", 8).checkpoints, 8)
    if damage == "size":
        (folder / "__0_0.distcp").write_bytes(b"ab")
    elif damage == "missing":
        (folder / "__0_0.distcp").unlink()
    else:
        (folder / CHECKPOINT_MARK).write_text("{")
    ((path, rule),) = faults(tmp_path, "checkpoint.from=run:parent@8")
    assert path == "checkpoint.from"
    assert "is damaged" in rule or "cannot be read" in rule


@pytest.mark.parametrize("engine", ["mcore", "megatron-lm", "nemo1", "nemo2", "bridge"])
def test_an_empty_folder_is_no_checkpoint_of_any_engine(tmp_path: Path, engine: str) -> None:
    (tmp_path / "empty").mkdir()
    ((path, rule),) = faults(tmp_path, f"checkpoint.from={tmp_path / 'empty'}", f"engine={engine}", *GPU)
    assert path == "checkpoint.from"
    assert "has no complete checkpoint" in rule or "is an empty folder" in rule


def write(file: Path, text: str = "x") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("engine", "files", "says"),
    [
        ("megatron-lm", {"notes.txt": "x"}, "holds no latest_checkpointed_iteration.txt that names a step"),
        ("megatron-lm", {"latest_checkpointed_iteration.txt": "8", "iter_0000004/.metadata": ""}, "is unfinished"),
        ("megatron-lm", {"latest_checkpointed_iteration.txt": "8", "iter_0000008/.metadata": ""}, None),
        ("megatron-lm", {"latest_checkpointed_iteration.txt": "release", "release/.metadata": ""}, None),
        ("nemo2", {"weights/__0_0.distcp": "x"}, "has no weights/.metadata"),
        ("nemo2", {"weights/.metadata": "x", "../source-unfinished": ""}, "is unfinished"),
        ("nemo2", {"weights/.metadata": "x"}, None),
        ("nemo1", {"model_weights/.metadata": "x"}, "is no .nemo: model_config.yaml in it cannot be read"),
        ("nemo1", {"model_config.yaml": "num_layers: {layers}"}, None),
    ],
)
def test_what_a_foreign_engine_could_not_begin_from_is_refused(
    tmp_path: Path, engine: str, files: dict[str, str], says: str | None
) -> None:
    for name, text in files.items():
        write(tmp_path / "source" / name, text.format(layers=load("debug/cpt-4k-bf16").recipe.model.num_layers))
    found = faults(tmp_path, f"checkpoint.from={tmp_path / 'source'}", f"engine={engine}", *GPU)
    assert [path for path, _ in found] == ([] if says is None else ["checkpoint.from"])
    assert says is None or says in found[0][1]


def test_a_file_that_is_no_nemo_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "m.nemo")
    words = (f"checkpoint.from={tmp_path / 'm.nemo'}", "engine=nemo1", *GPU)
    assert faults(tmp_path, *words) == [("checkpoint.from", "is no .nemo: model_config.yaml in it cannot be read")]


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("train.steps=8",), "train.steps"),
        (("train.steps=7",), "train.steps"),
        (("train.steps=9",), None),
        (("~train.steps", f"train.tokens={8 * 16 * 256}"), "train.tokens"),
        (("~train.steps", f"train.tokens={9 * 16 * 256}"), None),
        (("train.steps=8", "checkpoint.load=[weights]"), None),  # begins at step 0
        (("train.steps=8", "checkpoint.load=[weights, optimizer]"), None),  # a new stage, with Adam's moments
    ],
)
def test_a_checkpoint_at_or_behind_the_last_step(tmp_path: Path, words: tuple[str, ...], refused: str | None) -> None:
    saved(tmp_path / "parent", 4, 8)
    found = faults(tmp_path, "checkpoint.from=run:parent", *words)
    if refused is None:
        assert found == []
    else:
        assert found == [(refused, f"checkpoint is already at step 8; increase {refused}")]


def test_data_that_a_job_could_not_read_or_cut(tmp_path: Path) -> None:
    with write_dataset(tmp_path / "tokens", 512) as writer:
        writer.add_document([1] * 256)
    small, none = faults(tmp_path)
    assert small[0] == none[0] == "data.blend.0.path"
    assert "training part" in small[1] and "has 256 tokens, fewer than one sequence of 256 + 1" in small[1]
    assert none[1].endswith("set train.val_steps=0 to train without validation")
    assert len(faults(tmp_path, "train.val_steps=0", "batch.seq_length=128")) == 0
    (tmp_path / "tokens.idx").write_bytes(b"")
    ((path, rule),) = faults(tmp_path)
    assert path == "data.blend.0.path" and "is not a Megatron index" in rule


def test_a_model_with_fewer_rows_than_its_tokenizer_has_tokens(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(TOKENIZER.replace('"id": 0', '"id": 599'))
    words = (f"tokenizer.path={tmp_path / 't.json'}", "model.vocab_size=599")
    assert faults(tmp_path, *words) == [("model.vocab_size", f"must be at least 600, the tokens of {tmp_path}/t.json")]
    assert faults(tmp_path, words[0], "model.vocab_size=600") == []


@pytest.mark.parametrize(
    ("source", "rule"),
    [("run:gone", "no such run"), ("run:parent@9", "no checkpoint of step 9; it has 4"), ("run:parent@4", None)],
)
def test_a_reference_policy_is_looked_up_before_the_job_waits(tmp_path: Path, source: str, rule: str | None) -> None:
    saved(tmp_path / "parent", 4)
    recipe = load("debug/dpo", [f"task.reference_from={source}"], cluster="local").recipe
    found = [fault.rule for fault in inputs.missing(recipe, tmp_path) if fault.path == "task.reference_from"]
    assert len(found) == (rule is not None)
    assert rule is None or rule in found[0]


def test_epochs_are_counted_over_the_rows_of_the_file(tmp_path: Path) -> None:
    """Plan, bundle and ranks count the same steps; a stated number of rows must be the file's."""
    for name in ("train", "validation"):
        (tmp_path / f"{name}.jsonl").write_text('{"a": 1}\n\n  \n{"b": 2}\n' * 20 + '{"last": 3}')
    (tmp_path / "tokenizer.json").write_text(TOKENIZER)
    words = [f"data.{name}={tmp_path}/{name}.jsonl" for name in ("train", "validation")]
    words += [f"tokenizer.path={tmp_path}/tokenizer.json", "~train.steps", "train.epochs=3", "checkpoint.from=none"]
    words += ["batch.gbs=8", "batch.mbs=8", "optimizer.warmup_steps=0"]

    compiled = prepare(load("debug/sft", words, cluster="local").recipe, tmp_path)
    assert compiled.recipe.data.train_samples == 41
    assert compiled.manifest["total_steps"] == derived.total_steps(compiled.recipe) == 3 * (41 // 8)
    assert inputs.missing(compiled.recipe, tmp_path) == []

    stated = load("debug/sft", [*words, "data.train_samples=40"], cluster="local").recipe
    (fault,) = inputs.missing(stated, tmp_path)
    assert (fault.path, fault.value, fault.nearest) == ("data.train_samples", 40, (41,))
    large = inputs.with_row_counts(load("debug/sft", [*words, "batch.gbs=48"], cluster="local").recipe)
    assert [fault.path for fault in inputs.missing(large, tmp_path)] == ["batch.gbs"]
