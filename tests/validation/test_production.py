"""Published production runs against the production line of their plans (sources: README.md)."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colosseum.planning.constants import calibration_for
from colosseum.planning.plan import Plan
from colosseum.planning.resolve import resolve
from colosseum.recipe.load import load
from tests.validation.published import overrides_of

FILE = Path(__file__).with_name("production.csv")
ROWS = list(csv.DictReader(FILE.read_text().splitlines()))


def plan_of(row: dict[str, str]) -> Plan:
    if row["recipe"]:
        return resolve(load(row["recipe"], cluster="dgx-h100").recipe, top=0)
    return resolve(load("generic", overrides_of(row), cluster="local").recipe, top=0)


@pytest.fixture(scope="module")
def slower() -> dict[str, dict[str, float]]:
    """Of each row, by convention: how many times longer than the plan's acceptance step its steps took."""
    found = {}
    for row in ROWS:
        plan = plan_of(row)
        assert plan.mfu is not None
        found[row["id"]] = {name: getattr(plan.mfu, name) / float(row["mfu"]) for name in ("causal", "full")}
    return found


def inside(row: dict[str, str], factor: float) -> bool:
    real, step = plan_of(row).production, plan_of(row).step_time_s
    assert real is not None and step is not None
    low, high = real.step_time_range_s
    return low <= factor * step <= high


@pytest.mark.parametrize("unstated", ["causal", "full"])
def test_nine_in_ten_production_runs_are_inside_the_interval(slower: Any, unstated: str) -> None:
    """Whichever convention the sources that do not state theirs have counted attention by."""
    held = [inside(row, slower[row["id"]][row["convention"] or unstated]) for row in ROWS]
    assert len(held) >= 14
    assert sum(held) >= 0.9 * len(held), [row["id"] for row, is_in in zip(ROWS, held, strict=True) if not is_in]


def test_the_case_studys_three_stages_are_inside(slower: Any) -> None:
    for row in ROWS[:3]:
        assert row["id"].startswith("colosseum")
        assert inside(row, slower[row["id"]]["causal"]), row["id"]


def test_no_acceptance_range_holds_them() -> None:
    """What the second line is for: most production runs are slower than any acceptance run."""
    outside = 0
    for row in ROWS:
        plan = plan_of(row)
        assert plan.step_time_range_s is not None and plan.step_time_s is not None and plan.mfu is not None
        outside += plan.mfu.causal / float(row["mfu"]) > plan.step_time_range_s[1] / plan.step_time_s
    assert outside >= 6


def test_days_and_cost_are_productions() -> None:
    """600e9 tokens in steps of 1,260 x 16,384, at 1.15 times their pace and 1.05 for restarts."""
    words = ["cluster.price_per_gpu_hour=2", "train.tokens=600_000_000_000"]
    plan = resolve(load("colosseum-355b/cpt-16k-expand", words, cluster="dgx-h100").recipe, top=0)
    assert plan.step_time_s is not None and plan.days is not None
    real = plan.production
    assert real is not None and real.days == plan.days
    steps = 600_000_000_000 // (1260 * 16384)
    assert plan.days == pytest.approx(steps * plan.step_time_s * 1.15 * 1.05 / 86400)
    assert plan.cost == pytest.approx(plan.days * 24 * 2880 * 2)
    assert real.days_range is not None and real.days_range[0] < plan.days < real.days_range[1]


def test_a_run_of_the_site_replaces_the_published_pace() -> None:
    recipe = load("colosseum-355b/cpt-16k-expand", cluster="dgx-h100").recipe
    shipped = calibration_for("h100-sxm")
    measured = replace(shipped, constants=replace(shipped.constants, site_factor=1.3))
    before, after = resolve(recipe, shipped, top=0), resolve(recipe, measured, top=0)
    assert before.step_time_s is not None and before.production is not None and after.production is not None
    assert after.production.step_time_s == pytest.approx(before.step_time_s * 1.3)
    assert before.production.step_time_s == pytest.approx(before.step_time_s * 1.15)


def test_the_clusters_own_failures_replace_the_published_restarts() -> None:
    words = ["cluster.node_mtbf_hours=20000", "cluster.storage.write_bytes_per_s=1e11"]
    plan = resolve(load("colosseum-355b/cpt-16k-expand", words, cluster="dgx-h100").recipe, top=0)
    assert plan.production is not None and plan.storage is not None and plan.storage.goodput is not None
    assert plan.production.restart_factor == pytest.approx(1 / plan.storage.goodput)
    assert plan.production.restarts_measured
