"""Every shipped recipe still gives the files in tests/golden."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from colosseum.recipe.load import shipped_recipes
from tests import golden_files

ADVICE = "if that is meant: scripts/update-golden, read the diff, commit it"


@pytest.fixture(autouse=True)
def shipped_clusters_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_becomes_its_golden_files(name: str) -> None:
    for file, data in golden_files.render(name).items():
        path = golden_files.GOLDEN / golden_files.path_of(name, file)
        assert path.is_file(), f"{name} has no golden file {file}: scripts/update-golden"
        assert data.decode() == path.read_text(), f"{name} no longer becomes its golden file {file}; {ADVICE}"


HEADS = sorted(golden_files.GOLDEN.rglob(golden_files.JOB_HEAD))
LAUNCH_SCRIPTS = sorted(golden_files.GOLDEN.rglob("bundle/*.sh"))


def test_scripts_are_shellcheck_clean(tmp_path: Path) -> None:
    """Job scripts whole, as Slurm gets them: the head's variables are used in the body."""
    body = (golden_files.GOLDEN / golden_files.JOB_BODY).read_bytes()
    scripts = list(LAUNCH_SCRIPTS)
    for number, head in enumerate(HEADS):
        scripts.append(tmp_path / f"{number}-{head.parents[1].name}.sbatch")
        scripts[-1].write_bytes(head.read_bytes() + body)
    assert len(HEADS) >= 10 and len(LAUNCH_SCRIPTS) >= 5
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_no_golden_file_is_left_over() -> None:
    assert golden_files.on_disk().keys() == golden_files.render_all().keys(), ADVICE
