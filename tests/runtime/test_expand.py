"""A trained model grown and trained on under another layout: it begins with the loss its parent would have had."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from colosseum.checkpoint.compare import load_faults
from colosseum.checkpoint.expand import expand
from colosseum.checkpoint.expansion import largest_difference
from colosseum.checkpoint.folders import read_metadata
from colosseum.checkpoint.growth import growth
from colosseum.recipe.schema import Recipe
from colosseum.rundir import checkpoint_folder
from tests.runtime import tiny
from tests.runtime.conftest import COLOSSEUM
from tests.runtime.worlds import losses, train_all

LAYERS, GROWN = 4, 8
QWEN = {"add_qkv_bias": True, "qk_layernorm": True}
"""So that what Llama's layers do not have is grown too."""


def test_a_grown_model_goes_on_from_the_parents_loss_under_another_layout(data: Path, tmp_path: Path) -> None:
    parent = tiny.on(data, tp=2, distributed=True, model={"num_layers": LAYERS, **QWEN})
    train_all({"parent": parent}, tmp_path)
    source = checkpoint_folder(tmp_path / "parent" / "checkpoints", tiny.HALF)
    folder = expand(source, tmp_path / "grown", growth(LAYERS, GROWN, "evenly", "identity", "carry"))
    assert largest_difference(source, folder, parent.model, GROWN) <= 1e-5

    everything = tiny.on(data, pp=2, vpp=2, distributed=True, model={"num_layers": GROWN, **QWEN}).as_data()
    everything["checkpoint"]["from"] = str(tmp_path / "grown")
    everything["checkpoint"]["load"] = ["weights", "optimizer", "data", "rng"]
    train_all({"child": Recipe.from_data(everything)}, tmp_path)
    before, after = losses(tmp_path / "parent"), losses(tmp_path / "child")
    first = tiny.HALF + 1
    assert min(after) == first
    assert after[first] == pytest.approx(before[first], abs=2e-5)
    assert after[tiny.STEPS] < after[first] - 0.1, "it goes on learning"

    # The same by the installed command.
    words = [COLOSSEUM, "checkpoint", "expand", source, tmp_path / "weights", "--layers", str(GROWN), "--json"]
    shown = subprocess.run([*words, "--optimizer", "drop"], capture_output=True, text=True, check=True)
    found = json.loads(shown.stdout)
    assert found["new_layers"] == [2, 4, 6, 8]
    each = 2 * 64 * 2 + 2 * 8 * 2 + (64 + 1) * (64 + 2 * 32) + 64 * 64 + 2 * 64 * 128
    assert found["largest_logit_difference"] == 0.0
    tables = 2 * tiny.VOCAB * 64 + 2 * 64
    assert found["parameters"] == [tables + LAYERS * each, tables + GROWN * each]
    weights = read_metadata(checkpoint_folder(tmp_path / "weights" / "checkpoints", tiny.HALF))
    faults = load_faults(Recipe.from_data(everything), weights, ("weights", "optimizer"))
    assert len(faults) == 1 and "weights only" in faults[0]
    assert load_faults(Recipe.from_data(everything), weights, ("weights",)) == []
