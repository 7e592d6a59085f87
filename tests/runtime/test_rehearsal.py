"""The rehearsal of a stage of the 355B, through the installed command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from colosseum.rundir import RunDir
from tests.runtime.conftest import COLOSSEUM


def rehearse(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [COLOSSEUM, "rehearse", *words, "--runs", str(folder / "runs"), "--json"]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=400)


def passed(folder: Path, recipe: str, *words: str) -> dict[str, object]:
    done = rehearse(folder, recipe, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict: dict[str, object] = json.loads(done.stdout)
    assert verdict["passed"] is True
    checks = [check["name"] for check in verdict["checks"]]  # type: ignore[attr-defined]
    assert checks == ["trains", "validates", "saves", "resumes exactly", "resumes under another layout"]
    return verdict


def test_the_16k_stage_on_four_processes(tmp_path: Path) -> None:
    verdict = passed(tmp_path, "colosseum-355b/cpt-16k-expand")
    kept = {d["what"]: d["after"] for d in verdict["decisions"]}  # type: ignore[attr-defined]
    assert {name: kept[name] for name in ("tp", "pp", "vpp", "cp", "dp")} == dict.fromkeys(
        ("tp", "pp", "vpp", "cp", "dp"), "2"
    )
    # What has passed may start; the same recipe with another word has not been rehearsed.
    train = ["train", "cpt", "--stage", "expand-16k", "--rehearse-first", "--runs", str(tmp_path / "runs")]
    same = subprocess.run([COLOSSEUM, *train], cwd=tmp_path, capture_output=True, text=True)
    assert "no rehearsal" not in same.stderr
    assert "needs 2,880 x h100-sxm" in " ".join(same.stderr.split())
    other = subprocess.run([COLOSSEUM, *train, "optimizer.lr=2e-5"], cwd=tmp_path, capture_output=True, text=True)
    assert other.returncode == 2
    assert "no rehearsal of this recipe has passed" in " ".join(other.stderr.split())
    written = json.loads(RunDir(Path(verdict["runs"][0])).rehearsal.read_text())  # type: ignore[index]
    assert written == verdict


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["colosseum-355b/sft", "colosseum-355b/dpo"])
def test_the_alignment_stages(tmp_path: Path, recipe: str) -> None:
    passed(tmp_path, recipe, "--ranks", "2")


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["cpt-4k-bf16", "cpt-fp8", "baseline-96"])
def test_the_other_stages(tmp_path: Path, recipe: str) -> None:
    passed(tmp_path, f"colosseum-355b/{recipe}")


@pytest.mark.long
def test_eight_processes_try_three_dimensions_at_a_time(tmp_path: Path) -> None:
    passed(tmp_path, "colosseum-355b/cpt-16k-expand", "--ranks", "8")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("generic", "--ranks", "9"), "must be 2 to 8"),
        (("generic", "--ranks", "1"), "must be 2 to 8"),
    ],
)
def test_what_cannot_be_rehearsed_is_said(tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    done = rehearse(tmp_path, *words)
    assert done.returncode == 2
    assert sentence in json.loads(done.stdout)["faults"][0]["rule"]
    assert list(tmp_path.iterdir()) == []
