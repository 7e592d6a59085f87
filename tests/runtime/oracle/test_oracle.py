"""SFT and DPO compute what TRL computes: ids, masks, losses, log-probabilities, gradient norms, the step after a step.

``make_figures.py`` made the figures, in an environment of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from colosseum.checkpoint.hf.facts import read_facts
from colosseum.checkpoint.hf.importing import import_hf
from colosseum.data.align.cache import build_cache
from colosseum.data.align.encode import Spec
from colosseum.data.align.hf_template import read_hf_template
from colosseum.recipe import rules
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, latest_rows
from tests.runtime import tiny_align
from tests.runtime.oracle import case
from tests.runtime.worlds import train_all

FIGURES = json.loads(Path(__file__).with_name("figures.json").read_text())
TASKS: dict[str, dict[str, Any]] = {
    "sft": {"kind": "sft"},
    "dpo": {"kind": "dpo", "beta": case.BETA, "reference": "precomputed"},
    "ipo": {"kind": "dpo", "beta": case.BETA, "reference": "resident", "loss": "ipo_by_token"},
}
LAYOUTS = ("one", "tp2-sp", "pp2", "pp2-vpp2", "cp2", "dp2")
NAMES = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "logps/chosen": "logp_chosen",
    "logps/rejected": "logp_rejected",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
    "rewards/margins": "margin",
}
"""TRL's names and ours."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data and, by name, the imported models."""
    folder = tmp_path_factory.mktemp("oracle")
    for kind, its in (("sft", case.chats()), ("dpo", case.pairs())):
        (folder / f"{kind}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in its))
    case.write_tokenizer(folder)
    for name in case.MODELS:
        import_hf(case.write_model(folder / "hf" / name, name), folder / name)
    return folder


def recipe(rows: Path, name: str, kind: str, layout: str, *, packing: bool = False) -> Recipe:
    full = tiny_align.on(layout).as_data()
    facts = read_facts(rows / name)
    assert facts is not None
    task = {**TASKS[kind], "template": "tokenizer", "shuffle": False, "packing": packing}
    file = str(rows / f"{task['kind']}.jsonl")
    full["model"] = facts.model.model_dump(mode="json")
    full["tokenizer"] = {"kind": "tokenizer_json", "path": str(rows / "tokenizer.json"), "eod": case.EOD}
    full["task"] = task
    full["data"].update(blend=[], train=file, validation=file)
    full["batch"].update(gbs=case.GBS, mbs=2, seq_length=256)
    full["train"].update(steps=case.STEPS, val_every_steps=case.STEPS, val_steps=0)
    full["optimizer"].update(lr=case.LR, lr_schedule="constant", warmup_steps=0, weight_decay=case.WEIGHT_DECAY)
    full["optimizer"].update(beta1=case.BETAS[0], beta2=case.BETAS[1], eps=case.EPS, clip_grad=case.CLIP)
    full["checkpoint"].update({"from": str(rows / name), "load": ["weights"], "every_steps": 100})
    return Recipe.from_data(full)


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_ids_and_masks_are_those_of_trl(kind: str, rows: Path, tmp_path: Path) -> None:
    spec = Spec(
        kind="chat" if kind == "sft" else "preference",
        tokenizer=rows / "tokenizer.json",
        eod=case.EOD,
        template=read_hf_template(rows / "tokenizer.json"),
        seq_length=256,
    )
    data = build_cache(rows / f"{kind}.jsonl", spec, tmp_path, processes=1)
    assert len(data) == case.GBS * case.STEPS
    for number, expected in enumerate(FIGURES[f"rows-{kind}"]):
        found = [[sequence.ids.tolist(), sequence.mask.tolist()] for sequence in data.sample(number)]
        assert found == expected, number


def test_losses_and_gradients_are_those_of_trl(rows: Path, tmp_path: Path) -> None:
    runs = {
        f"{name}-{kind}-{layout}": recipe(rows, name, kind, layout)
        for name in case.MODELS
        for kind in TASKS
        for layout in (LAYOUTS if kind != "ipo" else ("one", "cp2"))
    }
    for name, layout in (("llama3", "cp2"), ("nemotron", "pp2-vpp2")):
        for kind in ("sft", "dpo"):
            runs[f"{name}-{kind}-{layout}-packed"] = recipe(rows, name, kind, layout, packing=True)
    compare(runs, tmp_path)


@pytest.mark.long
def test_packed_rows_change_nothing(rows: Path, tmp_path: Path) -> None:
    runs = {
        f"{name}-{kind}-{layout}": recipe(rows, name, kind, layout, packing=True)
        for name in case.MODELS
        for kind in ("sft", "dpo")
        for layout in LAYOUTS
    }
    compare(runs, tmp_path)


def compare(runs: dict[str, Recipe], folder: Path) -> None:
    """Two steps: the second one's figures are those of the weights that the first one's update left."""
    for name, its in runs.items():
        assert rules.faults(its) == [], name
    train_all(runs, folder)
    wrong = {}
    for name in runs:
        steps = latest_rows(RunDir(folder / name).metrics, "train")
        for step, expected in zip(steps, FIGURES["-".join(name.split("-")[:2])], strict=True):
            for theirs, ours in NAMES.items():
                if "ipo" in name and theirs not in ("loss", "grad_norm"):
                    continue  # ours are means over tokens there, as the loss takes them
                if theirs in expected and step[ours] != pytest.approx(expected[theirs], rel=1e-4, abs=1e-4):
                    wrong[name, step["step"], ours] = step[ours], expected[theirs]
    assert wrong == {}
