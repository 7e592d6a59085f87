"""What a run begins from: its newest whole checkpoint, of its own model and its own run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from colosseum.checkpoint.folders import checksums
from colosseum.recipe.schema import Recipe
from colosseum.rundir import CHECKPOINT_MARK, RunDir, checkpoint_folder, read_lines, saved_steps
from tests.runtime import tiny
from tests.runtime.worlds import fail_all, losses, train_all

STEPS = 6


def small(data: Path, **model: Any) -> Recipe:
    sections = {"train": {"steps": STEPS, "val_steps": 0}, "checkpoint": {"every_steps": 2}, "batch": {"mbs": 4}}
    return tiny.recipe(data, model={"num_layers": 2, **model}, **sections)


def zero_64_bytes(folder: Path) -> None:
    """Damage that leaves the size as it was."""
    file = max(folder.glob("*.distcp"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    file.write_bytes(content)


def cut(folder: Path) -> None:
    file = next(iter(folder.glob("*.distcp")))
    file.write_bytes(file.read_bytes()[:-1])


def rewrite(folder: Path, **fields: Any) -> None:
    document = json.loads((folder / CHECKPOINT_MARK).read_text())
    (folder / CHECKPOINT_MARK).write_text(json.dumps(document | fields))


def without_a_weight(folder: Path) -> None:
    """A checkpoint that says it is of the model and lacks one of its weights."""
    import pickle

    metadata = pickle.loads((folder / ".metadata").read_bytes())
    del metadata.state_dict_metadata["decoder.final_layernorm.weight"]
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    found = checksums(folder, json.loads((folder / CHECKPOINT_MARK).read_text())["files"])
    rewrite(folder, files={name: sums.model_dump() for name, sums in found.items()})


def test_a_run_goes_on_from_its_newest_whole_checkpoint(data: Path, tmp_path: Path) -> None:
    recipe = small(data)
    base = train_all({"base": recipe}, tmp_path)["base"]
    spoil: dict[str, dict[int, Callable[[Path], None]]] = {
        "zeroed": {6: zero_64_bytes},
        "several": {6: cut, 4: zero_64_bytes},
        "all": {6: zero_64_bytes, 4: zero_64_bytes, 2: zero_64_bytes},
        "moved": {6: lambda folder: shutil.rmtree(folder)},
        "stranger": {6: lambda folder: rewrite(folder, run_id="other", recipe_hash="0" * 64)},
    }
    for name, damage in spoil.items():
        run = RunDir(tmp_path / name)
        shutil.copytree(tmp_path / "base" / "checkpoints", run.checkpoints)
        for step, do in damage.items():
            do(checkpoint_folder(run.checkpoints, step))
    shutil.copytree(checkpoint_folder(tmp_path / "moved" / "checkpoints", 4), tmp_path / "given" / "iter_0000004")
    without_a_weight(tmp_path / "given" / "iter_0000004")
    runs = dict.fromkeys(spoil, recipe)
    others = {"activation_func": "gelu", "rotary_percent": 1.0, "kv_channels": 16, "add_bias_linear": True}
    others |= {"normalization": "RMSNorm", "gated_linear_unit": True}
    for field, value in others.items():
        runs[field] = tiny.resumed(small(data, **{field: value}), tmp_path / "base", 4)
    runs["rope"] = tiny.resumed(small(data, rope_base=500000), tmp_path / "base", 4)
    full = recipe.as_data()
    full["checkpoint"]["from"] = str(tmp_path / "given" / "iter_0000004")
    runs["lacking"] = Recipe.from_data(full)
    ends = fail_all(runs, tmp_path)

    def reason(name: str) -> str:
        end = ends[name]
        assert end is not None, name
        assert (end.kind, end.retry) == ("config_error", False), end
        return end.reason

    def events(name: str, kind: str) -> list[dict[str, Any]]:
        return [row for row in read_lines(RunDir(tmp_path / name).events) if row["kind"] == kind]

    for name, first, aside in (("zeroed", 5, [6]), ("several", 3, [4, 6]), ("moved", 5, [])):
        run = RunDir(tmp_path / name)
        assert ends[name] is None
        found = losses(run.root)
        assert found == {step: base[step] for step in range(first, STEPS + 1)}
        assert saved_steps(run.checkpoints) == [2, 4, 6]
        assert sorted(p.name for p in run.checkpoints.glob("*.damaged-0")) == [f"iter_{n:07d}.damaged-0" for n in aside]
        passed = events(name, "checkpoint_passed_over")
        assert [row["step"] for row in passed] == aside[::-1]
        assert all("is damaged: __0_" in row["reason"] for row in passed)
        (other,) = events(name, "checkpoint_of_another_run")
        assert "is of run base, of the same recipe" in other["reason"]
    assert "all checkpoints of this run are damaged (steps [6, 4, 2]" in reason("all")
    assert saved_steps(tmp_path / "all" / "checkpoints") == [2, 4, 6], "nothing is renamed: the next start says it too"
    assert "iter_0000006 is of run other, of another recipe" in reason("stranger")
    for field in others:
        assert f"the checkpoint is of another model: {field} " in reason(field)
    assert reason("lacking").endswith("is of another model: it lacks decoder.final_layernorm.weight")
    assert ends["rope"] is None
    (changed,) = events("rope", "model_changed")
    assert changed["reason"] == "changed since iter_0000004: rope_base 10000 → 500000"
