"""Every shipped recipe still becomes what tests/golden says."""

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
        path = golden_files.GOLDEN / name / file
        assert path.is_file(), f"{name} has no golden {file}: scripts/update-golden"
        assert data.decode() == path.read_text(), f"{name} no longer becomes its golden {file}; {ADVICE}"


SCRIPTS = sorted(p for p in golden_files.GOLDEN.rglob("bundle/*") if p.suffix in (".sh", ".sbatch"))


def test_scripts_are_shellcheck_clean() -> None:
    assert len(SCRIPTS) >= 10
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([shellcheck, *SCRIPTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_no_golden_file_is_left_over() -> None:
    assert golden_files.on_disk().keys() == golden_files.render_all().keys(), ADVICE
