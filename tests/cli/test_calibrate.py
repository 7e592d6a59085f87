"""colosseum calibrate on this machine's CPU, for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colosseum.planning.constants import calibration_for, read_calibration
from tests.cli.conftest import Cli


def test_this_machine_is_measured_and_the_file_serves_a_plan(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLOSSEUM_MEASURE_SECONDS", "0.1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = cli("calibrate", "--only", "gemm,memory", "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["file"] == "calibration-cpu.yaml"
    assert {"gemm_efficiency_bf16", "memory_efficiency"} <= set(said["constants"])
    calibration = read_calibration(tmp_path / "calibration-cpu.yaml")
    assert calibration.hash == said["hash"]
    assert 0.001 < calibration.constants.gemm_efficiency_bf16 < 2
    plan = cli("plan", "generic", "--calibration", "calibration-cpu.yaml", "--json")
    assert plan.code == 0, plan.err
    assert json.loads(plan.out)["calibration"] == {"name": "cpu-measured", "hash": said["hash"]}


def test_measurements_of_another_machine_are_fitted_here(cli: Cli, tmp_path: Path) -> None:
    """What ships for the H200 is what this command makes of its measurements."""
    file = Path(__file__).parents[1] / "validation" / "h200_measurements.json"
    base = tmp_path / "base.yaml"
    base.write_text(json.dumps(calibration_for("h100-sxm").as_data()))
    done = cli("calibrate", "--measured", str(file), "--base", str(base), "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["file"] == "calibration-h200-sxm.yaml"
    assert said["hash"] == calibration_for("h200-sxm").hash


@pytest.mark.parametrize(
    "words",
    [
        ("--only", "gems"),
        ("--from", "nothing"),
        ("--from", "x", "--only", "gemm"),
        ("--measured", "missing.json"),
        ("--base", "missing.yaml"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = cli("calibrate", *words)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []
