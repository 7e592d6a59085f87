"""SFT and DPO: the same losses in every layout, packed and not; what they learn; resumed bit for bit.

All runs share one start of the worker: importing takes longer than the steps.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colosseum.data.align.order import Order
from colosseum.recipe import rules
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, latest_rows
from colosseum.runtime.tasks.aligned import open_data, samples_of
from tests.runtime import tiny, tiny_align
from tests.runtime.tiny_align import DPO, LAYOUTS, SFT
from tests.runtime.worlds import train_in_order

FIGURES = ("loss", "grad_norm", "trained_tokens", "margin", "reward_chosen", "logp_rejected", "kl", "consumed_tokens")
HERE = [layout for layout in LAYOUTS if layout != "pp2"]
"""Plain PP2 is compared with TRL (oracle/)."""
TASKS = {"sft": SFT, "dpo": DPO}
RPO = {**DPO, "loss": "rpo_sq"}
TWO_STEPS = {"steps": 2, "val_every_steps": 2, "val_steps": 1}
RESUMED = {"sft": SFT, "sft-packed": {**SFT, "packing": True}, "dpo-packed": {**DPO, "packing": True}}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    tiny_align.write_data(folder)
    return folder


@pytest.fixture(scope="module")
def runs(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs."""
    folder = tmp_path_factory.mktemp("runs")
    start = tiny_align.aligned(tiny_align.on("one"), rows, SFT, train=TWO_STEPS)
    train_in_order([("start", start), *_in_layouts(rows, folder), *_resumed(rows), *_others(rows, folder)], folder)
    return folder


def _in_layouts(rows: Path, folder: Path) -> list[tuple[str, Recipe]]:
    found = []
    for kind, task in TASKS.items():
        for layout in ("one", *HERE):
            for packing in (False, True):
                recipe = tiny_align.aligned(tiny_align.on(layout), rows, {**task, "packing": packing}, train=TWO_STEPS)
                assert rules.faults(recipe) == []
                name = f"{kind}-{layout}{'-packed' * packing}"
                found.append((name, tiny.resumed(recipe, folder / "start", 2)))
    for reference, packing in (("resident", False), ("host", True)):
        task = {**DPO, "reference": reference, "packing": packing}
        recipe = tiny_align.aligned(tiny_align.on("dp2"), rows, task, train=TWO_STEPS)
        found.append((f"dpo-dp2-{reference}", tiny.resumed(recipe, folder / "start", 2)))
    return found


def _resumed(rows: Path) -> list[tuple[str, Recipe]]:
    """Of each task a run of four steps, one of two, and its continuation in the same folder."""
    found = []
    for name, task in RESUMED.items():
        whole = tiny_align.aligned(tiny_align.on("dp2"), rows, task)
        half = whole.as_data()
        half["train"].update(steps=2)
        found += [(f"{name}-whole", whole), (f"{name}-half", Recipe.from_data(half)), (f"{name}-half", whole)]
    return found


def _others(rows: Path, folder: Path) -> list[tuple[str, Recipe]]:
    learnt = tiny_align.aligned(tiny_align.on("one"), rows, DPO, train={"steps": 12, "val_every_steps": 12})
    saved = tiny_align.aligned(tiny_align.on("dp2"), rows, SFT, train=TWO_STEPS)
    assert saved.overlap.param_gather is True
    still = {"lr": 0.0, "min_lr": 0.0}
    once = {"steps": 1, "val_every_steps": 1, "val_steps": 1}
    again = tiny_align.aligned(tiny_align.on("dp2"), rows, SFT, train=once, optimizer=still)
    rewarded = [
        (f"rpo-{layout}", tiny_align.aligned(tiny_align.on(layout), rows, {**RPO, "packing": packing}, train=TWO_STEPS))
        for layout, packing in (("one", False), ("dp2", True))
    ]
    return [*rewarded, ("learnt", learnt), ("saved", saved), ("again", tiny.resumed(again, folder / "saved", 2))]


def figures(run: Path) -> list[float]:
    """Of the training steps and of the validation."""
    metrics = RunDir(run).metrics
    found = latest_rows(metrics, "train") + latest_rows(metrics, "val")
    return [row[key] for row in found for key in FIGURES if key in row]


@pytest.mark.parametrize("kind", TASKS)
def test_every_layout_packed_or_not_computes_what_one_process_computes(runs: Path, kind: str) -> None:
    expected = figures(runs / f"{kind}-one")
    assert len(expected) >= 4 * 2
    for run in sorted(runs.glob(f"{kind}-*")):
        if not run.name.endswith(("-whole", "-half")):
            assert figures(run) == pytest.approx(expected, rel=1e-5, abs=2e-5), run.name


@pytest.mark.parametrize("kind", TASKS)
def test_packed_rows_are_fuller(runs: Path, kind: str) -> None:
    def padding(name: str) -> float:
        found = [row["padding_share"] for row in latest_rows(RunDir(runs / name).metrics, "train")]
        return float(sum(found) / len(found))

    assert padding(f"{kind}-mbs4-packed") < 0.1 < padding(f"{kind}-one-packed") < padding(f"{kind}-one")


@pytest.mark.parametrize("name", RESUMED)
def test_runs_resume_bit_for_bit(runs: Path, name: str) -> None:
    expected, found = (
        {
            row["step"]: [row[key] for key in FIGURES if key in row]
            for row in latest_rows(RunDir(runs / f"{name}-{part}").metrics, "train")
        }
        for part in ("whole", "half")
    )
    assert sorted(expected) == [1, 2, 3, 4]
    assert found == expected


def test_a_preference_is_learnt_and_held_out_pairs_are_told_apart(runs: Path) -> None:
    metrics = RunDir(runs / "learnt").metrics
    first = latest_rows(metrics, "train")[0]
    assert first["accuracy"] == 0.5, "policy and reference are the same: a tie"
    assert first["loss"] == pytest.approx(0.693147, abs=1e-5)
    assert latest_rows(metrics, "val")[0]["accuracy"] > 0.95


def test_margins_are_compared_with_the_rewards_of_each_pair(runs: Path, rows: Path) -> None:
    """While policy and reference are the same, the squared loss is that of the file's own reward margins."""
    pairs = [json.loads(line) for line in (rows / "dpo-train.jsonl").read_text().splitlines()]
    recipe = tiny_align.aligned(tiny_align.on("one"), rows, RPO)
    order = Order(samples=len(pairs), gbs=recipe.batch.gbs, seed=recipe.train.seed, shuffle=True)
    margins = [pairs[n]["chosen_reward"] - pairs[n]["rejected_reward"] for n in order.step(0)]
    assert len(set(margins)) > 3
    first = latest_rows(RunDir(runs / "rpo-one").metrics, "train")[0]
    assert first["loss"] == pytest.approx(sum(m**2 for m in margins) / len(margins), rel=1e-5)
    assert figures(runs / "rpo-dp2") == pytest.approx(figures(runs / "rpo-one"), rel=1e-5, abs=2e-5)


def test_rows_that_are_left_out_are_counted(rows: Path, tmp_path: Path) -> None:
    recipe = tiny_align.aligned(tiny_align.on("one"), rows, DPO, batch={"seq_length": 24})
    samples = samples_of(recipe, data := open_data(recipe, "train", tmp_path), "train", 8, {})
    assert 0 < data.counts.too_long < data.counts.rows == tiny_align.ROWS["train"]
    steps = 3 * (data.counts.rows // recipe.batch.gbs)
    passes = steps / (len(data) // recipe.batch.gbs)
    assert f"{data.counts.too_long} dropped longer than" in samples.left_out(steps)
    assert samples.left_out(steps).endswith(f"{steps} steps take the rows that are kept {passes:.2f} times")
    whole = tiny_align.aligned(tiny_align.on("one"), rows, DPO)
    assert samples_of(whole, open_data(whole, "train", tmp_path), "train", 8, {}).left_out(steps) == ""


def test_a_save_under_param_gather_overlap_holds_every_ranks_new_weights(runs: Path) -> None:
    """They reach the other ranks in the next forward pass: a run that takes the weights alone began with old ones."""
    losses = [latest_rows(RunDir(runs / name).metrics, "val")[0]["loss"] for name in ("saved", "again")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
