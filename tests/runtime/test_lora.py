"""LoRA: the same training in every layout, a base that stays as it is, adapters that are resumed and merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from colosseum.bundle import RECIPE, to_yaml
from colosseum.checkpoint.adapters import MergedTensors
from colosseum.checkpoint.folders import read_metadata
from colosseum.checkpoint.forward import logits
from colosseum.checkpoint.hf.exporting import export_hf
from colosseum.checkpoint.hf.importing import import_hf
from colosseum.checkpoint.hf.origin import origin_of
from colosseum.checkpoint.torchdist import Tensors, read_index
from colosseum.engines.registry import engine_of
from colosseum.recipe import rules
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, checkpoint_folder, latest_rows
from tests.runtime import tiny, tiny_align
from tests.runtime.generation.test_tokens import answered
from tests.runtime.tiny_align import DPO, SFT
from tests.runtime.worlds import train_in_order

LORA = {"rank": 4, "alpha": 16.0}
FULL = {"rank": 64, "alpha": 64.0}
"""As many as the smallest side of a layer: any change of the weights can be learnt."""
LAYOUTS = ("one", "tp2-sp", "tp2", "pp2-vpp2", "cp2", "dp2")
TWO_STEPS = {"steps": 2, "val_every_steps": 2, "val_steps": 1}
FIGURES = ("loss", "grad_norm", "trained_tokens", "margin", "reward_chosen", "kl")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    tiny_align.write_data(folder)
    return folder


@pytest.fixture(scope="module")
def runs(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")

    def of(layout: str, task: dict[str, Any], source: str | None = "start", **sections: Any) -> Recipe:
        on = tiny.on(Path("/nowhere"), tp=2) if layout == "tp2" else tiny_align.on(layout)
        gated = {"gated_linear_unit": True, "activation_func": "silu"}
        sections = {"train": TWO_STEPS, "model": gated, **sections}
        recipe = tiny_align.aligned(on, rows, task, **sections)
        assert rules.faults(recipe) == engine_of(recipe.engine).faults(recipe) == []
        return recipe if source is None else tiny.resumed(recipe, folder / source, 2)

    found = [("start", of("one", SFT, None))]
    for layout in LAYOUTS:
        found.append((f"sft-{layout}", of(layout, {**SFT, "lora": LORA})))
    recompute = {"granularity": "full", "method": "uniform", "num_layers": 1}
    found.append(("sft-recomputed", of("one", {**SFT, "lora": LORA}, recompute=recompute)))
    found.append(("full-rank", of("one", {**SFT, "lora": FULL})))
    found.append(("nemotron", of("one", {**SFT, "lora": LORA}, None, model={})))
    for reference in ("precomputed", "resident", "host"):
        # The adapters of the start are merged first: the reference is the model with them.
        task = {**DPO, "lora": LORA, "reference": reference, "packing": reference == "host"}
        found.append((f"dpo-{reference}", of("dp2", task, "full-rank")))
    four = {"train": {"steps": 4, "val_every_steps": 4, "val_steps": 1}}
    whole = of("dp2", {**SFT, "lora": LORA}, **four)
    half = whole.as_data()
    half["train"].update(steps=2)
    found += [("whole", whole), ("again", Recipe.from_data(half)), ("again", whole)]
    still = {"optimizer": {"lr": 0.0, "min_lr": 0.0}, "train": {"steps": 1, "val_every_steps": 1, "val_steps": 1}}
    found.append(("merged-one", of("one", SFT, "full-rank", **still)))
    found.append(("merged-tp2", of("tp2-sp", {**SFT, "lora": LORA}, "full-rank", **still)))
    train_in_order(found, folder)
    for name in ("full-rank", "nemotron"):
        (folder / name / "bundle").mkdir()
        (folder / name / "bundle" / RECIPE).write_bytes(to_yaml(dict(found)[name].as_data()))
    return folder


def figures(run: Path, kind: str = "train") -> list[list[float]]:
    return [[row[key] for key in FIGURES if key in row] for row in latest_rows(RunDir(run).metrics, kind)]


def tensors(run: Path) -> dict[tuple[str, int | None], torch.Tensor]:
    """All weights of a run's checkpoint at step 2."""
    stored = Tensors(read_index(checkpoint_folder(run / "checkpoints", 2)))
    names = [(key, layer) for key, layer in stored.names() if key.startswith(("decoder.", "embedding.", "output_"))]
    return {(key, layer): stored.get(key, layer) for key, layer in names}


def test_every_layout_computes_what_one_process_computes(runs: Path) -> None:
    for kind in ("train", "val"):
        expected = figures(runs / "sft-one", kind)
        for layout in (*LAYOUTS, "recomputed"):
            for mine, its in zip(figures(runs / f"sft-{layout}", kind), expected, strict=True):
                assert mine == pytest.approx(its, rel=1e-5, abs=1e-6), layout


def test_the_loss_falls_and_the_base_stays_bit_for_bit(runs: Path) -> None:
    start, trained = tensors(runs / "start"), tensors(runs / "sft-tp2-sp")
    assert figures(runs / "sft-one", "val")[0][0] < figures(runs / "start", "val")[0][0]
    assert start.keys() < trained.keys()
    for name, weight in start.items():
        assert torch.equal(weight, trained[name][: len(weight)]), name  # TP pads the vocabulary further
    added = trained.keys() - start.keys()
    assert {key.rpartition(".")[0].rpartition(".")[2] for key, _ in added} == {
        *("linear_qkv_lora", "linear_proj_lora", "linear_fc1_lora", "linear_fc2_lora")
    }
    assert all(trained[name].any() for name in added)


def test_the_optimizer_holds_adapters_only(runs: Path) -> None:
    index = read_index(checkpoint_folder(runs / "sft-dp2" / "checkpoints", 2))
    moments = [key for key in index.shapes if key.startswith("optimizer.") and "exp_avg" in key]
    assert moments
    assert all("_lora." in key for key in moments)


def test_runs_resume_bit_for_bit(runs: Path) -> None:
    assert len(figures(runs / "whole")) == 4
    assert figures(runs / "again") == figures(runs / "whole")


def test_the_reference_is_the_model_without_adapters(runs: Path) -> None:
    expected = figures(runs / "dpo-precomputed")
    assert expected[0][0] == pytest.approx(0.693147, abs=1e-5)
    for reference in ("resident", "host"):
        for mine, its in zip(figures(runs / f"dpo-{reference}"), expected, strict=True):
            assert mine == pytest.approx(its, rel=1e-5, abs=1e-5), reference


def test_merged_weights_compute_the_same(runs: Path) -> None:
    """Loaded into a model without adapters, and into one with others, of another layout."""
    (expected,) = figures(runs / "full-rank", "val")
    for name in ("merged-one", "merged-tp2"):
        (found,) = figures(runs / name, "val")
        assert found == pytest.approx(expected, rel=1e-5), name
    folder = checkpoint_folder(runs / "full-rank" / "checkpoints", 2)
    merged = MergedTensors(Tensors(read_index(folder)), read_metadata(folder).lora)
    loaded = Tensors(read_index(checkpoint_folder(runs / "merged-one" / "checkpoints", 1)))
    key = "decoder.layers.mlp.linear_fc1.weight"
    torch.testing.assert_close(merged.get(key, 1), loaded.get(key, 1), rtol=0, atol=1e-6)


def test_an_exported_model_has_its_adapters_merged(runs: Path, tmp_path: Path) -> None:
    """The folder's own weights, read back by the importer, whose logits are transformers'."""
    folder = checkpoint_folder(runs / "nemotron" / "checkpoints", 2)
    metadata = read_metadata(folder)
    assert metadata.lora is not None
    model, stored, ids = origin_of(folder, metadata).model, Tensors(read_index(folder)), [*range(60, 100)]
    export_hf(folder, tmp_path / "exported")
    import_hf(tmp_path / "exported", tmp_path / "again")
    found = logits(Tensors(read_index(tmp_path / "again")), model, ids)
    assert read_metadata(tmp_path / "again").lora is None
    torch.testing.assert_close(found, logits(MergedTensors(stored, metadata.lora), model, ids), rtol=0, atol=1e-5)
    assert (found - logits(stored, model, ids)).abs().max() > 1e-3, "the adapters had learnt something"


def test_it_answers_with_its_adapters(runs: Path, tmp_path: Path) -> None:
    """Greedy tokens of the generator against logits that no engine computed, with the adapters and without."""
    folder = checkpoint_folder(runs / "full-rank" / "checkpoints", 2)
    metadata = read_metadata(folder)
    model, stored = origin_of(folder, metadata).model, Tensors(read_index(folder))

    def greedy(source: Any, ids: list[int]) -> list[int]:
        for _ in range(12):
            ids = [*ids, int(logits(source, model, ids)[-1].argmax())]
        return ids[-12:]

    prompts = [[60 + n, 70, 80 - n, *range(90, 96)] for n in range(4)]
    job = {"checkpoint": str(folder), "vocab_size": 260, "prompts": prompts, "tp": 1, "pp": 1}
    (found,) = answered([{**job, "runs": {"greedy": ({"max_tokens": 12}, 8)}}], tmp_path)
    assert found["greedy"] == [greedy(MergedTensors(stored, metadata.lora), ids) for ids in prompts]
    assert found["greedy"] != [greedy(stored, ids) for ids in prompts]
