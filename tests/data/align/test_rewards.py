"""Rewards of a preference file go with the rows that are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colosseum.data.align.rewards import reward_differences
from colosseum.errors import RefusedInput


def test_the_rows_that_are_kept(tmp_path: Path) -> None:
    rows = [{"chosen_reward": 10 * n, "rejected_reward": n / 2} for n in range(5)]
    (tmp_path / "pairs.jsonl").write_text("\n" + "".join(json.dumps(row) + "\n" for row in rows) + "not JSON\n")
    assert reward_differences(tmp_path / "pairs.jsonl", [2, 4, 6]).tolist() == [0.0, 19.0, 38.0]
    with pytest.raises(RefusedInput, match="changed"):
        reward_differences(tmp_path / "pairs.jsonl", [2, 8])


@pytest.mark.parametrize("value", ["null", '"3"', "true", "NaN", "Infinity", "1" + "0" * 400, "[1]"])
def test_what_is_no_reward_is_named(tmp_path: Path, value: str) -> None:
    good = '{"chosen_reward": 1, "rejected_reward": 0}'
    (tmp_path / "pairs.jsonl").write_text(f'{good}\n{{"chosen_reward": 1, "rejected_reward": {value}}}\n')
    assert reward_differences(tmp_path / "pairs.jsonl", [1]).tolist() == [1.0]
    with pytest.raises(RefusedInput) as refused:
        reward_differences(tmp_path / "pairs.jsonl", [1, 2])
    (fault,) = refused.value.faults
    assert fault.where.endswith("pairs.jsonl:2")
    assert "rejected_reward must be a finite number" in fault.rule


def test_a_row_without_rewards_is_named(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text("{}\n")
    with pytest.raises(RefusedInput, match="chosen_reward must be a finite number"):
        reward_differences(tmp_path / "pairs.jsonl", [1])
