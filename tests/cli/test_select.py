"""``colosseum select`` of checkpoints that are evaluated already: table, picture, verdict and pointer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colosseum.checkpoint.hf.importing import import_hf
from colosseum.evaluation.folder import Result, ScoreRow
from colosseum.evaluation.intervals import wilson
from colosseum.evaluation.scores import Item
from colosseum.evaluation.targets import Wanted, folder_of, request_of
from tests.evaluation import made

Cli = Callable[..., Any]
COUNT = 300
TASKS = ("ifeval", "mmlu")


def evaluated(checkpoint: Path, right: dict[str, float]) -> None:
    """Writes the result of an evaluation of the checkpoint with so large a share of each task's items right."""
    request = request_of(checkpoint, Wanted(tasks=TASKS))
    folder = folder_of(request, None)
    folder.begin(request)
    items, rows = [], []
    for task, share in right.items():
        values = [1.0 if n < share * COUNT else 0.0 for n in range(COUNT)]
        items += [
            Item(task=task, key=str(n), values={"acc": (value, 1.0)}, tags=("law",), language="en" if n % 2 else "it")
            for n, value in enumerate(values)
        ]
        found = wilson(sum(values), COUNT)
        rows.append(ScoreRow(task=task, metric="acc", mean=found.mean, low=found.low, high=found.high, count=COUNT))
    folder.write(
        Result(
            schema="colosseum.evaluation/1",
            target=request.target,
            weights=request.weights,
            settings=request.settings,
            scores=tuple(rows),
            members={},
            parts={},
            contamination={},
            cut=0,
        ),
        items,
    )


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A run of three checkpoints that began from another's: the last is the best, and has forgotten some of MMLU."""
    import_hf(made.write_model(tmp_path / "hf"), tmp_path / "ckpt")
    runs = tmp_path / "runs"
    made.write_run(runs, "base", {5: tmp_path / "ckpt"})
    made.write_run(runs, "sft", dict.fromkeys((10, 20, 30), tmp_path / "ckpt"), parent=("base", 5))
    shares = {10: (0.4, 0.6), 20: (0.6, 0.6), 30: (0.6, 0.5)}
    for step, (ifeval, mmlu) in shares.items():
        checkpoint = runs / "sft" / "checkpoints" / f"iter_{step:07d}"
        evaluated(checkpoint, {"ifeval": ifeval, "mmlu": mmlu})
    evaluated(runs / "base" / "checkpoints" / "iter_0000005", {"ifeval": 0.2, "mmlu": 0.8})
    return runs


def test_select_and_promote(runs: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = cli("select", "sft", "--by", "ifeval,mmlu:acc", "--runs", str(runs), "--promote")
    assert done.code == 0, done.err
    text = " ".join(done.out.split())
    assert "step 20 60.00% 54.36% to 65.38% 60.00% 54.36% to 65.38% yes selected" in text
    assert "ifeval (acc): step 20 is best with 60.00%; no difference that 95% intervals show to step 30" in text
    assert "mmlu (acc): step 20 is best with 60.00%; selected: step 20" in text
    assert "worse than the parent: mmlu, acc: -20.0 points" in text
    assert "worse than the parent: mmlu, language it, acc" in text
    assert "4 of 8 parts are worse than the parent's; about 0.2 by chance" in text
    assert "promoted: sft@selected is sft step 20" in text
    assert "loading" not in done.err, "nothing is evaluated again"
    assert (runs / "sft" / "selection" / "selection.png").stat().st_size > 1000
    inspected = cli("checkpoint", "inspect", "sft@selected", "--runs", str(runs), "--json")
    assert json.loads(inspected.out)["path"].endswith("iter_0000020")
