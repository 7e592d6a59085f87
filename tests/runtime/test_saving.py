"""Checkpoints written while training goes on, and what a fork takes from one."""

from __future__ import annotations

from pathlib import Path

from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, latest_rows, saved_steps
from tests.runtime import tiny
from tests.runtime.worlds import losses, train_all


def rates(run: Path) -> dict[int, float]:
    return {row["step"]: row["lr"] for row in latest_rows(RunDir(run).metrics, "train")}


def test_a_fork_with_larger_steps_goes_on_at_its_place_in_the_schedule(data: Path, tmp_path: Path) -> None:
    base = tiny.recipe(data)
    larger = tiny.recipe(data, batch={"gbs": 2 * tiny.GBS})
    train_all({"base": base, "larger": tiny.resumed(larger, tmp_path / "base", tiny.HALF)}, tmp_path)
    expected = rates(tmp_path / "base")
    # Warm-up and decay are said in steps: twice the samples a step change nothing.
    assert rates(tmp_path / "larger") == {step: expected[step] for step in range(tiny.HALF + 1, tiny.STEPS + 1)}
    assert expected[1] == 0.0, "the rate that the first step of a warm-up is made with"
    assert max(expected.values()) == expected[3] == base.optimizer.lr
    assert base.optimizer.min_lr < expected[tiny.STEPS] < expected[tiny.HALF]
    taken = [row["consumed_samples"] for row in latest_rows(RunDir(tmp_path / "larger").metrics, "train")]
    assert taken == [tiny.HALF * tiny.GBS + n * 2 * tiny.GBS for n in range(1, tiny.STEPS - tiny.HALF + 1)]


def test_an_asynchronous_save_holds_the_step_it_was_begun_at(data: Path, tmp_path: Path) -> None:
    def recipe(asynchronous: bool) -> Recipe:
        checkpoint = {"every_steps": 2, "keep_last": None, "async": asynchronous}
        return tiny.on(data, dp=2, distributed=True, checkpoint=checkpoint)

    runs = {"sync": recipe(False), "async": recipe(True)}
    # Step 2 is written while steps 3 and 4 change the weights: a copy taken too late would show here.
    runs["from-async"] = tiny.resumed(recipe(False), tmp_path / "async", 2)
    train_all(runs, tmp_path)
    expected = losses(tmp_path / "sync")
    assert losses(tmp_path / "async") == expected
    assert losses(tmp_path / "from-async") == {step: expected[step] for step in range(3, tiny.STEPS + 1)}
    steps = [2, 4, 6, 8]
    assert saved_steps(RunDir(tmp_path / "async").checkpoints) == steps
    assert [row["step"] for row in latest_rows(RunDir(tmp_path / "async").metrics, "save")] == steps
