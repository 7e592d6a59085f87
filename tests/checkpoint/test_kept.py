"""Averages, copies and pruning: what is computed, what is compared, and what is never deleted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

from colosseum.bundle import MANIFEST, RECIPE
from colosseum.checkpoint import copying, folders
from colosseum.checkpoint.averaging import average, shares_of
from colosseum.checkpoint.expand import expand
from colosseum.checkpoint.expansion import largest_difference
from colosseum.checkpoint.growth import growth
from colosseum.checkpoint.hf.exporting import export_hf
from colosseum.checkpoint.hf.facts import read_facts
from colosseum.checkpoint.hf.importing import import_hf
from colosseum.checkpoint.hf.source import read_folder
from colosseum.checkpoint.pruning import prune, pruning
from colosseum.checkpoint.torchdist import Tensors, read_index
from colosseum.cli.main import main
from colosseum.errors import RefusedInput
from colosseum.recipe.load import load
from colosseum.rundir import RunDir, checkpoint_folder, saved_steps
from tests.checkpoint import test_folders
from tests.checkpoint.hf import models


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two checkpoints of one model: the second's weights are three times the first's."""
    from safetensors.numpy import load_file, save_file

    root = tmp_path_factory.mktemp("pair")
    for name, factor in (("a", 1), ("b", 3)):
        folder = models.write(root / f"{name}-in", "qwen2", shards=1)
        tensors = {key: tensor * factor for key, tensor in load_file(folder / "model.safetensors").items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        import_hf(folder, root / name)
    return root / "a", root / "b"


def of(folder: Path) -> dict[tuple[str, int | None], torch.Tensor]:
    tensors = Tensors(read_index(folder))
    return {name: tensors.get(*name) for name in tensors.names()}


def test_an_average_is_one_and_goes_out_like_any_checkpoint(pair: tuple[Path, Path], tmp_path: Path) -> None:
    words = ["checkpoint", "average", *map(str, pair), "--out", str(tmp_path / "mean"), "--json"]
    assert main(words) == 0
    assert main([*words[:5], str(tmp_path / "shares"), "--weights", "3,1"]) == 0
    average([pair[0]] * 3, [1.0] * 3, tmp_path / "same")
    before, mean, shares, same = (of(f) for f in (pair[0], *(tmp_path / n for n in ("mean", "shares", "same"))))
    assert before.keys() == mean.keys() == shares.keys()
    for name, tensor in before.items():
        assert torch.equal(mean[name], 2 * tensor), name
        assert torch.equal(shares[name], 1.5 * tensor), name
        assert torch.equal(same[name], tensor), name
    metadata = folders.read_metadata(tmp_path / "mean")
    assert metadata.origin is not None and metadata.origin.settings["weights"] == [1.0, 1.0]
    assert not metadata.has_optimizer
    export_hf(tmp_path / "mean", tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_what_is_not_averaged(pair: tuple[Path, Path], tmp_path: Path) -> None:
    import_hf(models.write(tmp_path / "in", "qwen3"), tmp_path / "other")
    with pytest.raises(RefusedInput, match="another model"):
        average([pair[0], tmp_path / "other"], [1.0, 1.0], tmp_path / "out")
    with pytest.raises(RefusedInput, match="two checkpoints"):
        average([pair[0]], [1.0], tmp_path / "out")
    for text in ("1", "1,0", "1,-1", "a,b", "1,inf", "1,nan", "1,2,3"):
        with pytest.raises(RefusedInput, match="positive number"):
            shares_of(text, 2)
    copying.copy(pair[0], tmp_path / "copy", verify=True)
    flip(tmp_path / "copy" / "__0_0.distcp")
    with pytest.raises(RefusedInput, match="changed since"):
        average([pair[1], tmp_path / "copy"], [1.0, 1.0], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_imported_checkpoint_grows_and_carries_what_describes_it(pair: tuple[Path, Path], tmp_path: Path) -> None:
    folder = expand(pair[0], tmp_path / "grown", growth(3, 4, "end", "identity", "carry"))
    found = read_facts(folder)
    assert found is not None and found.model.num_layers == 4
    old, model = read_facts(pair[0]), found.model
    assert old is not None and model == old.model.model_copy(update={"num_layers": 4})
    assert largest_difference(pair[0], folder, old.model, 4) == 0.0
    export_hf(folder, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (pair[0] / "tokenizer" / "tokenizer.json").read_bytes()
    assert read_folder(tmp_path / "out").family.architecture == "Qwen2ForCausalLM"


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])


def test_a_copy_is_the_same_and_a_damaged_source_leaves_none(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert main(["checkpoint", "copy", str(pair[0]), str(tmp_path / "copy"), "--verify", "--json"]) == 0
    assert folders.read_metadata(tmp_path / "copy") == folders.read_metadata(pair[0])
    for path in pair[0].rglob("*"):
        if path.is_file():
            assert (tmp_path / "copy" / path.relative_to(pair[0])).read_bytes() == path.read_bytes()
    with pytest.raises(RefusedInput, match="another step"):
        copying.copy(pair[0], tmp_path / "iter_0000007", verify=False)
    flip(tmp_path / "copy" / "__0_0.distcp")
    with pytest.raises(RefusedInput, match="changed since"):
        copying.copy(tmp_path / "copy", tmp_path / "second", verify=False)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def run_folder(root: Path, name: str, **more: str) -> RunDir:
    """A run with a bundle's recipe and manifest; ``more`` is its checkpoint section or its parent."""
    run = RunDir(root / name)
    run.bundle.mkdir(parents=True)
    recipe = load("debug/cpt-4k-bf16", ["cluster=local"]).recipe.as_data()
    recipe["checkpoint"]["from"] = more.get("begins", "none")
    (run.bundle / RECIPE).write_text(yaml.safe_dump(recipe))
    lineage = {"run": more["parent"], "step": int(more["step"])} if "parent" in more else None
    (run.bundle / MANIFEST).write_text(json.dumps({"lineage": lineage}))
    return run


def test_pruning_spares_what_others_begin_from(tmp_path: Path) -> None:
    run = run_folder(tmp_path, "parent")
    for step in (10, 20, 30, 40, 50, 60, 70, 80):
        test_folders.save(run.checkpoints, step)
    run_folder(tmp_path, "child", parent="parent", step="20")
    run_folder(tmp_path, "named", begins="run:parent@30")
    run_folder(tmp_path, "by-path", begins=str(checkpoint_folder(run.checkpoints, 50)))
    run_folder(tmp_path, "stranger", parent="another", step="60")
    (tmp_path / "campaign-x").mkdir()
    damaged = checkpoint_folder(run.checkpoints, 80) / "__0_0.distcp"
    damaged.write_bytes(b"ab")  # an unfinished newest one does not count
    (tmp_path / "sweep-lr").mkdir()
    (tmp_path / "sweep-lr" / "selected.json").write_text('{"run": "parent", "step": 60}')
    words = ["checkpoint", "prune", "parent", "--runs", str(tmp_path), "--keep-last", "1", "--keep-every", "40"]
    assert main([*words, "--dry-run"]) == 0
    assert saved_steps(run.checkpoints) == [10, 20, 30, 40, 50, 60, 70, 80]
    found = pruning(run, 1, 40)
    taken = "what takes sweep-lr@selected"
    assert (found.gone, found.kept) == ([10], {20: "child", 30: "named", 50: "by-path", 60: taken})
    assert main(words) == 0
    assert saved_steps(run.checkpoints) == [20, 30, 40, 50, 60, 70, 80]
    assert main([*words[:5], "--keep-last", "0"]) == 2


def test_a_neighbour_that_cannot_be_read_stops_the_pruning(tmp_path: Path) -> None:
    run = run_folder(tmp_path, "parent")
    for step in (10, 20):
        test_folders.save(run.checkpoints, step)
    (run_folder(tmp_path, "torn").bundle / RECIPE).write_text("a: [")
    with pytest.raises(RefusedInput, match="torn cannot be read"):
        pruning(run, 1, None)
    (tmp_path / "torn" / "bundle" / RECIPE).unlink()
    with pytest.raises(RefusedInput, match="torn cannot be read"):
        pruning(run, 1, None)
    prune(run, pruning(run, 2, None))
    assert saved_steps(run.checkpoints) == [10, 20]
