"""A gate that converts the checkpoint of another engine's run; the files are laid out as those engines leave them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from colosseum.checkpoint.folders import check_sums, read_metadata
from colosseum.checkpoint.torchdist import Tensors, read_index
from colosseum.checkpoint.weights import weights_of
from colosseum.checkpoint.writing import Writer
from colosseum.launch.campaigns.gate import pass_through
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, checkpoint_folder
from colosseum.runtime.begin import _start_folder
from tests.launch.test_campaign import _complete, _run

FOREIGN = ("hardware=h100-sxm", "checkpoint.load=[weights]", "train.val_every_steps=20")
CHILD = ("checkpoint.from=run:parent", "checkpoint.load=[weights]")


def write_weights(folder: Path, recipe: Recipe, seed: int) -> None:
    """Random weights of the recipe's model as torch_dist."""
    generator, model = torch.Generator().manual_seed(seed), recipe.model
    folder.mkdir(parents=True)
    with Writer(folder) as writer:
        for key, layer, shape in weights_of(model):
            tensor = torch.randn(shape, generator=generator)
            writer.tensor(key, shape, lambda tensor=tensor: tensor, layer, model.num_layers)
        writer.close(torch.float32)


def leave_checkpoint(run: RunDir, recipe: Recipe, engine: str, seed: int = 0) -> Path:
    """What a complete run of the engine leaves; the folder of its tensors."""
    run.checkpoints.mkdir(exist_ok=True)
    (run.checkpoints / "latest_checkpointed_iteration.txt").write_text("20")
    if engine == "megatron-lm":
        folder = checkpoint_folder(run.checkpoints, 20)
    else:
        folder = run.root / "nemo/checkpoints/model.nemo/model_weights"
    write_weights(folder, recipe, seed)
    if engine == "nemo1":
        sizes = {"num_layers": recipe.model.num_layers, "hidden_size": recipe.model.hidden_size}
        (folder.parent / "model_config.yaml").write_text(yaml.safe_dump(sizes))
    return folder


@pytest.mark.parametrize("engine", ["megatron-lm", "nemo1"])
def test_a_gate_converts_and_expands(tmp_path: Path, engine: str) -> None:
    parent, recipe = _run(tmp_path, "parent", f"engine={engine}", *FOREIGN)
    weights = leave_checkpoint(parent, recipe, engine)
    _complete(parent)
    child, its = _run(tmp_path, "child", *CHILD)
    deeper, _ = _run(tmp_path, "deeper", *CHILD, "model.num_layers=6")
    for run in (child, deeper):
        verdict = pass_through(run)
        assert verdict.passed, verdict.faults
        assert f"converted from engine {engine}'s checkpoint" in verdict.notes[0]
    start = _start_folder(child, its.checkpoint.source)
    assert start == checkpoint_folder(child.converted / "checkpoints", 0)
    check_sums(start, read_metadata(start))
    before, after = Tensors(read_index(weights)), Tensors(read_index(start))
    for key, layer in before.names():
        assert torch.equal(before.get(key, layer), after.get(key, layer)), (key, layer)
    grown = _start_folder(deeper, its.checkpoint.source)
    assert grown.is_relative_to(deeper.grown)
    assert read_metadata(grown).model.num_layers == 6


def test_a_gate_converts_once_and_again_after_another_checkpoint(tmp_path: Path) -> None:
    parent, recipe = _run(tmp_path, "parent", "engine=megatron-lm", *FOREIGN)
    weights = leave_checkpoint(parent, recipe, "megatron-lm")
    _complete(parent)
    child, its = _run(tmp_path, "child", *CHILD)
    numbers = []
    for _ in range(2):
        assert pass_through(child).passed
        numbers.append((_start_folder(child, its.checkpoint.source) / ".metadata").stat().st_ino)
    assert numbers[0] == numbers[1]
    weights.rename(tmp_path / "old")
    leave_checkpoint(parent, recipe, "megatron-lm", seed=1)
    assert pass_through(child).passed
    key = "decoder.final_layernorm.weight"
    folders = (tmp_path / "old", weights, _start_folder(child, its.checkpoint.source))
    old, new, found = (Tensors(read_index(folder)).get(key) for folder in folders)
    assert torch.equal(found, new) and not torch.equal(found, old)


@pytest.mark.parametrize("words", [("model.hidden_size=256",), ("model.num_layers=2",)])
def test_a_gate_refuses_another_model(tmp_path: Path, words: tuple[str, ...]) -> None:
    parent, recipe = _run(tmp_path, "parent", "engine=megatron-lm", *FOREIGN)
    leave_checkpoint(parent, recipe, "megatron-lm")
    _complete(parent)
    child, _ = _run(tmp_path, "child", *CHILD, *words)
    verdict = pass_through(child)
    assert not verdict.passed
    assert "another model" in verdict.faults[0]


def test_a_gate_says_what_is_damaged(tmp_path: Path) -> None:
    parent, recipe = _run(tmp_path, "parent", "engine=megatron-lm", *FOREIGN)
    (leave_checkpoint(parent, recipe, "megatron-lm") / ".metadata").unlink()
    _complete(parent)
    child, _ = _run(tmp_path, "child", *CHILD)
    (fault,) = pass_through(child).faults
    assert fault.startswith("the checkpoint was not converted: ") and ".metadata" in fault
