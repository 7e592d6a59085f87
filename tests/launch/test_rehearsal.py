"""A rehearsal's verdict on figures; the runs themselves are in tests/runtime."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from colosseum.launch.trials.rehearsal import Trial, identity, passed_rehearsal, verdict
from colosseum.planning.shrink import SAVE_AT, STEPS
from colosseum.recipe.load import load
from colosseum.rundir import RunDir

RUN = RunDir(Path("run"))
LOSSES = {step: 6.0 - step / 10 for step in range(1, STEPS + 1)}
THROUGH = Trial(
    run=RUN, failure=None, losses=LOSSES, validations={SAVE_AT: 5.0}, saved=(SAVE_AT, STEPS), consumed_samples=64
)
RESUMED = replace(THROUGH, losses={step: loss for step, loss in LOSSES.items() if step > SAVE_AT})


def moved(by: float) -> Trial:
    return replace(RESUMED, losses={**RESUMED.losses, STEPS: RESUMED.losses[STEPS] + by})


def failed(*trials: Trial, dtype: str = "fp32") -> list[str]:
    return [check.name for check in verdict(list(trials), dtype) if not check.passed]


def test_equal_losses_pass() -> None:
    assert failed(THROUGH, RESUMED, moved(5e-5)) == []


@pytest.mark.parametrize(
    ("through", "resumed", "other", "names"),
    [
        (replace(THROUGH, failure="crash at step 3: it burned"), RESUMED, RESUMED, ["trains"]),
        (replace(THROUGH, losses={**LOSSES, 2: math.nan}), RESUMED, RESUMED, ["trains"]),
        (replace(THROUGH, validations={}), RESUMED, RESUMED, ["validates"]),
        (replace(THROUGH, validations={SAVE_AT: math.inf}), RESUMED, RESUMED, ["validates"]),
        (THROUGH, moved(1e-12), RESUMED, ["resumes exactly"]),
        (THROUGH, replace(RESUMED, losses={}), RESUMED, ["resumes exactly"]),
        (THROUGH, RESUMED, moved(1e-3), ["resumes under another layout"]),
        (THROUGH, RESUMED, moved(math.nan), ["resumes under another layout"]),
        (THROUGH, RESUMED, replace(RESUMED, consumed_samples=56), ["resumes under another layout"]),
        (THROUGH, RESUMED, replace(RESUMED, failure="hang"), ["resumes under another layout"]),
    ],
)
def test_each_difference_fails_its_check(through: Trial, resumed: Trial, other: Trial, names: list[str]) -> None:
    assert failed(through, resumed, other) == names


def test_bf16_sums_differ_more_under_another_layout_and_never_on_the_same() -> None:
    assert failed(THROUGH, RESUMED, moved(1e-2), dtype="bf16") == []
    assert failed(THROUGH, moved(1e-2), RESUMED, dtype="bf16") == ["resumes exactly"]


def test_without_a_checkpoint_nothing_is_resumed_and_the_verdict_says_so() -> None:
    checks = list(verdict([replace(THROUGH, saved=())], "fp32"))
    assert [c.name for c in checks if not c.passed] == ["saves"]


def test_a_passed_rehearsal_is_found_whatever_checkpoint_the_recipe_begins_from(tmp_path: Path) -> None:
    recipe = load("debug/cpt-4k-bf16").recipe
    other = load("debug/cpt-4k-bf16", ["optimizer.lr=0.1"]).recipe
    fork = load("debug/cpt-4k-bf16", ["checkpoint.from=run:x@3", "name=y", "resources.time_limit=1h"]).recipe
    for name, digest, passed in (("a", identity(other), "false"), ("b", identity(recipe), "true")):
        (tmp_path / name).mkdir()
        RunDir(tmp_path / name).rehearsal.write_text(f'{{"rehearsed_hash": "{digest}", "passed": {passed}}}')
    for name, text in (("c", "[]"), ("d", '{"rehearsed_hash": ')):
        (tmp_path / name).mkdir()
        RunDir(tmp_path / name).rehearsal.write_text(text)
    assert passed_rehearsal(recipe, tmp_path)
    assert passed_rehearsal(fork, tmp_path)
    assert not passed_rehearsal(other, tmp_path), "it failed"
    assert not passed_rehearsal(recipe, tmp_path / "nowhere")
