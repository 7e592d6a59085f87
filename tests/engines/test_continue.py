"""A run that loads another run's optimizer: what engines write for it, and what megatron-core then loads."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from colosseum.engines.foreign import continues
from colosseum.engines.registry import engine_of
from colosseum.recipe.load import load
from tests.engines.conftest import Rendered, Resolved

ENGINES = ("megatron-lm", "nemo1", "nemo2", "bridge")
FP8 = "colosseum-355b/cpt-fp8"
RATES = ("optimizer.lr=0.001", "optimizer.min_lr=0.0001", "checkpoint.from=run:parent")
RUNS = {
    "new": (*RATES, "checkpoint.load=[weights, optimizer]"),
    "whole": (*RATES, "checkpoint.load=[weights, optimizer, data, rng]"),
    "faster": (*RATES, "optimizer.lr=0.002", "checkpoint.load=[weights, optimizer]"),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each of RUNS loads of a real checkpoint after 20 steps of learning rate 0.001."""
    folder = tmp_path_factory.mktemp("continue")
    names = {"tracker": "latest_checkpointed_iteration.txt"}
    for name, words in RUNS.items():
        engine = folder / name / "bundle/engine"
        engine.mkdir(parents=True)
        recipe = load("generic", words, cluster="dgx-h100").recipe
        (engine / "command.json").write_text(json.dumps({"continues": continues(recipe), "names": names}))
    words = [sys.executable, "-m", "tests.engines.continuing", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={"OMP_NUM_THREADS": "1"})
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    links = [path for path in (folder / "new/continued/iter_0000020").iterdir() if path.is_symlink()]
    assert {path.name for path in links} >= {".metadata"}
    return found


def test_adam_goes_on_and_the_run_begins_at_step_0(loaded: dict[str, dict[str, Any]]) -> None:
    found = loaded["new"]
    assert found["weights"] == [0, 1, 2, 3]
    assert (found["adam_step"], found["iteration"], found["samples"]) == (20, 0, 0)
    own, fresh = found["rates"]
    assert own == fresh, "warm-up and cosine are the new run's, from their beginning"


def test_with_its_data_a_run_goes_on_in_the_middle(loaded: dict[str, dict[str, Any]]) -> None:
    found = loaded["whole"]
    assert (found["iteration"], found["samples"]) == (20, 80)
    assert found["rates"][0][0] != found["rates"][1][0]


def test_another_learning_rate_in_the_checkpoint_is_refused(loaded: dict[str, dict[str, Any]]) -> None:
    """Adam's groups in the checkpoint keep the old one, and it would win without a word."""
    assert "keeps max_lr 0.001, which would win over this run's 0.002" in loaded["faster"]["refused"]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_case_study_s_fp8_stage_as_it_stands(engine: str, rendered: Rendered, resolved: Resolved) -> None:
    words = (f"engine={engine}", "tokenizer.path=/t/tokenizer.json")
    launch = rendered(FP8, *words)
    (dropped,) = engine_of(engine).drops(resolved(FP8, *words)) or [None]
    command = json.loads(launch.files["command.json"])
    if engine == "nemo1":
        assert dropped is not None
        assert "Adam's moments begin at zero, so the first 20 or so steps are noisy" in dropped.rule
        assert command["continues"] is None
        return
    assert dropped is None
    if engine == "nemo2":  # its own restore loads them
        assert b'"load_optim_state": true' in launch.files["nemo2.json"]
        return
    assert (command["continues"]["to"], command["continues"]["keep"]) == ("continued", False)
    assert any("continued" in word for word in command["first"])
    assert "continue_from.py" in launch.files


@pytest.mark.parametrize("engine", ["megatron-lm", "bridge"])
def test_data_without_the_optimizer_is_refused(engine: str, resolved: Resolved) -> None:
    recipe = resolved("generic", f"engine={engine}", "checkpoint.from=run:p", "checkpoint.load=[weights, data]")
    assert [fault.path for fault in engine_of(engine).faults(recipe)] == ["checkpoint.load"]
