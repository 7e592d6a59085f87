"""Every layout computes what one process computes, from one process's checkpoint and to the same losses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colosseum.recipe import rules
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, read_lines
from tests.runtime import tiny
from tests.runtime.worlds import losses, train_all

FP32, BF16 = 2e-5, 2e-2
"""Largest difference of a loss of about 6: sums come in another order; BF16 keeps 8 bits."""
FULL = {"granularity": "full", "method": "uniform", "num_layers": 1}
QWEN = {"add_qkv_bias": True, "qk_layernorm": True}
"""Each TP rank sees the norms' gradients of its own heads: they are added up, also without sequence parallelism."""
SCAN = {"scan_every_steps": tiny.STEPS - 1}
"""One step of the second half counts what FP8 would lose."""
SELECTIVE = {"granularity": "selective", "modules": ["core_attn"]}


def layouts(data: Path) -> dict[str, Recipe]:
    """One to eight ranks; every dimension alone and together, every schedule, every option that changes the order."""

    def on(*sizes: int, **more: object) -> Recipe:
        return tiny.on(data, *sizes, **more)  # type: ignore[arg-type]

    return {
        "one-recompute-full": on(1, 1, 1, 1, 1, recompute=FULL, stability=SCAN),
        "one-recompute-selective": on(1, 1, 1, 1, 1, recompute=SELECTIVE),
        "one-distributed": on(1, 1, 1, 1, 1, distributed=True),
        "one-mbs4": on(1, 1, 1, 1, 1, batch={"mbs": 4}),
        "dp2": on(1, 1, 1, 1, 2),
        "dp2-distributed": on(1, 1, 1, 1, 2, distributed=True),
        "dp2-overlap": on(1, 1, 1, 1, 2, distributed=True, overlap=True),
        "tp2": on(2, 1, 1, 1, 1),
        "tp2-sp": on(2, 1, 1, 1, 1, sp=True),
        "cp2": on(1, 1, 1, 2, 1, distributed=True),
        "pp2": on(1, 2, 1, 1, 1),
        "pp2-vpp2": on(1, 2, 2, 1, 1, stability=SCAN),
        "pp2-vpp4-recompute": on(1, 2, 4, 1, 1, recompute=FULL),
        "pp2-uneven": on(1, 2, 1, 1, 1, first=3, last=5),
        "dp4-overlap": on(1, 1, 1, 1, 4, distributed=True, overlap=True),
        "tp2-pp2-sp": on(2, 2, 1, 1, 1, sp=True, stability=SCAN),
        "tp2-cp2-sp": on(2, 1, 1, 2, 1, sp=True, distributed=True),
        "pp2-vpp2-dp2": on(1, 2, 2, 1, 2, distributed=True, overlap=True),
        "pp4-vpp2": on(1, 4, 2, 1, 1),
        "tp4-sp": on(4, 1, 1, 1, 1, sp=True),
        "cp2-dp2": on(1, 1, 1, 2, 2, distributed=True, stability=SCAN),
        "tp2-pp2-cp2-sp": on(2, 2, 1, 2, 1, sp=True, distributed=True),
        "tp2-pp2-vpp2-dp2-sp": on(2, 2, 2, 1, 2, sp=True, distributed=True, overlap=True),
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    tiny.write_data(folder)
    return folder


def test_every_layout_continues_one_processs_run_with_its_losses(data: Path, tmp_path: Path) -> None:
    table = layouts(data)
    assert len(table) >= 20
    for name, recipe in table.items():
        assert rules.faults(recipe) == [], name
    base = train_all(
        {
            "base": tiny.on(data, stability=SCAN),
            "base-bf16": tiny.on(data, dtype="bf16"),
            "base-qwen": tiny.on(data, model=QWEN),
        },
        tmp_path,
    )
    whole = base["base"]
    assert whole[tiny.STEPS] < whole[1] - 0.1, "the model learns"
    runs = {name: tiny.resumed(recipe, tmp_path / "base", tiny.HALF) for name, recipe in table.items() if name != "dp2"}
    runs["dp2"] = table["dp2"]  # cannot read a distributed optimizer's states; its first weights are the base's
    runs["bf16-tp2-pp2-sp"] = tiny.resumed(
        tiny.on(data, 2, 2, sp=True, dtype="bf16"), tmp_path / "base-bf16", tiny.HALF
    )
    for name, qwen in (
        ("qwen-tp2", tiny.on(data, 2, model=QWEN)),
        ("qwen-tp2-pp2-sp", tiny.on(data, 2, 2, sp=True, model=QWEN)),
    ):
        runs[name] = tiny.resumed(qwen, tmp_path / "base-qwen", tiny.HALF)
    found = train_all(runs, tmp_path)
    wrong = {}
    for name, its_losses in found.items():
        expected = base.get(f"base-{name.partition('-')[0]}", whole)
        tolerance = BF16 if name.startswith("bf16") else FP32
        first = 1 if name == "dp2" else tiny.HALF + 1
        assert sorted(its_losses) == list(range(first, tiny.STEPS + 1)), name
        worst = max(abs(its_losses[step] - expected[step]) for step in its_losses)
        if not worst <= tolerance:
            wrong[name] = worst
    assert wrong == {}
    check_scans(tmp_path, [name for name, recipe in table.items() if recipe.stability.scan_every_steps])


def check_scans(folder: Path, names: list[str]) -> None:
    """Every layout sees the same weights, and inputs and gradients of like size; the losses above say it changes none.

    The first context-parallel rank sees half of a sequence; tensor-parallel ranks may see the same input each.
    """
    whole = tensors(folder / "base")
    assert len(names) == 4 and len(whole) == 8 * 4 * 3
    for name in names:
        for key, seen in tensors(folder / name).items():
            kind, expected = key[-1], whole[key]
            half = "cp2" in name and kind != "weight"
            assert seen["amax"] == pytest.approx(expected["amax"], rel=0.9 if half else 0.02)
            mine, its = (np.array(row["exponents"]) for row in (expected, seen))
            if kind == "weight":
                assert np.abs(mine - its).sum() <= 0.002 * mine.sum(), (name, key)
            elif not half:
                assert np.abs(mine / mine.sum() - its / its.sum()).max() < 0.02, (name, key)


def tensors(run: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    scan = json.loads((RunDir(run).fp8_scans / f"step-{tiny.STEPS - 1:07d}.json").read_text())
    event = next(row for row in read_lines(RunDir(run).events) if row["kind"] == "fp8_scan")
    assert event["overrides"] == scan["proposal"]["overrides"]
    return {(row["layer"], row["module"], row["kind"]): row for row in scan["tensors"]}


MATRIX = ("one-distributed", "dp2-distributed", "tp2-sp", "cp2", "pp2-vpp2", "tp2-pp2-sp", "pp4-vpp2", "cp2-dp2")


@pytest.mark.long
def test_every_layout_resumes_from_every_layouts_checkpoint(data: Path, tmp_path: Path) -> None:
    """Each of eight saves in the middle of its own run, each of eight goes on from there: the very same samples."""
    table = layouts(data)
    whole = train_all({"base": tiny.on(data)}, tmp_path)["base"]
    train_all({f"from-{name}": table[name] for name in MATRIX}, tmp_path)
    runs = {
        f"{source}-to-{target}": tiny.resumed(table[target], tmp_path / f"from-{source}", tiny.HALF)
        for source in MATRIX
        for target in MATRIX
    }
    starts = {name: losses(tmp_path / f"from-{name}") for name in MATRIX}
    found = train_all(runs, tmp_path)
    wrong = {}
    for source in MATRIX:
        for target in MATRIX:
            after = found[f"{source}-to-{target}"]
            assert sorted(after) == list(range(tiny.HALF + 1, tiny.STEPS + 1))
            worst = max(abs(after[step] - starts[source][step]) for step in after)
            if not worst <= FP32:
                wrong[source, target] = worst
            ledger = list(read_lines(RunDir(tmp_path / f"{source}-to-{target}").ledger))[-1]
            assert ledger["consumed_samples"] == tiny.STEPS * tiny.GBS
            assert sum(ledger["tokens_by_source"].values()) == tiny.STEPS * tiny.GBS * 64
    assert wrong == {}
    assert max(abs(starts["one-distributed"][step] - whole[step]) for step in whole) <= FP32
