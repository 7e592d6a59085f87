"""campaign.json and gate.json as they are read back: typed, or one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from colosseum.errors import RefusedInput
from colosseum.launch.campaigns.campaign import Campaign, Stage, read
from colosseum.launch.campaigns.gate import read_gate
from colosseum.rundir import RunDir

STAGE = {"name": "a", "recipe": "debug/sft", "overrides": ["x=1"], "source": None, "run": "r", "job": "7"}


def test_a_campaign_is_read_as_it_was_written(tmp_path: Path) -> None:
    stage = Stage(name="a", recipe="debug/sft", overrides=("x=1",), source=None, run="r", job="7")
    campaign = Campaign(root=tmp_path, name="c", cluster=None, stages=(stage,))
    campaign.write()
    assert read(tmp_path) == campaign


WRONG = [("run", "../r"), ("run", 3), ("job", "--me"), ("job", "-1"), ("overrides", "x=1"), ("name", None)]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_damaged_campaign_is_a_sentence(tmp_path: Path, key: str, value: object) -> None:
    stages = [{**STAGE, key: value}]
    data = {"schema": "colosseum.campaign/1", "name": "c", "cluster": None, "stages": stages}
    (tmp_path / "campaign.json").write_text(json.dumps(data))
    with pytest.raises(RefusedInput, match=rf"campaign\.json is damaged: stages\.0\.{key}"):
        read(tmp_path)


def test_a_campaign_of_another_release(tmp_path: Path) -> None:
    (tmp_path / "campaign.json").write_text('{"schema": "colosseum.campaign/9"}')
    with pytest.raises(RefusedInput, match=r"'colosseum\.campaign/9', and this release, .* reads"):
        read(tmp_path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{}", "null", '{"passed": 1, "lineage": [{"run": "../x", "step": 1}]}']
)
def test_a_gate_that_cannot_be_read_lets_nobody_through(tmp_path: Path, text: str) -> None:
    assert read_gate(RunDir(tmp_path)) is None
    (tmp_path / "gate.json").write_text(text)
    found = read_gate(RunDir(tmp_path))
    assert found is not None
    assert (found.passed, found.parent) == (False, None)
    (tmp_path / "gate.json").unlink()
    os.mkfifo(tmp_path / "gate.json")
    found = read_gate(RunDir(tmp_path))
    assert found is not None and "no regular file" in found.faults[0]
