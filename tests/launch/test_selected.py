"""RUN@selected and SWEEP@selected: what ``--promote`` has written, wherever RUN@STEP is taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colosseum.errors import RefusedInput
from colosseum.launch.runs.selected import Selected, promote, run_and_step_of


def selected(run: str, step: int) -> Selected:
    return Selected(schema="colosseum.selected/1", run=run, step=step, by=("ifeval",), verdict="v")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("20260101-000000-sft-0000", "point-1"):
        (tmp_path / name / "bundle").mkdir(parents=True)
    (tmp_path / "sweep-lr").mkdir()
    (tmp_path / "sweep-lr" / "sweep.json").write_text("{}")
    return tmp_path


def test_of_a_run_and_of_a_sweep(runs: Path) -> None:
    run = runs / "20260101-000000-sft-0000"
    promote(run, selected(run.name, 500))
    promote(runs / "sweep-lr", selected("point-1", 40))
    assert run_and_step_of(f"{run.name}@selected", runs) == (str(run), 500)
    assert run_and_step_of(f"{run}@selected", runs) == (str(run), 500)
    assert run_and_step_of("lr@selected", runs) == (str(runs / "point-1"), 40)
    assert run_and_step_of(f"{run.name}@30", runs) == (run.name, 30)
    promote(run, selected(run.name, 600))
    assert run_and_step_of(f"{run.name}@selected", runs)[1] == 600, "the newest promotion counts"


def test_what_was_not_selected_or_is_damaged_is_refused(runs: Path) -> None:
    with pytest.raises(RefusedInput, match=r"colosseum select point-1 --by TASK --promote"):
        run_and_step_of("point-1@selected", runs)
    with pytest.raises(RefusedInput, match="no such run"):
        run_and_step_of("absent@selected", runs)
    for text in ('{"schema": "colosseum.selected/1", "run": "../x", "step": 1, "by": [], "verdict": "v"}', "[]", "{"):
        (runs / "point-1" / "selected.json").write_text(text)
        with pytest.raises(RefusedInput, match=r"selected\.json"):
            run_and_step_of("point-1@selected", runs)


def test_a_pointer_is_json_that_contracts_name(runs: Path) -> None:
    path = promote(runs / "point-1", selected("point-1", 7))
    assert json.loads(path.read_text()) == {
        "schema": "colosseum.selected/1",
        "run": "point-1",
        "step": 7,
        "by": ["ifeval"],
        "verdict": "v",
    }
