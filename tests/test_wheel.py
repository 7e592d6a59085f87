"""The wheel holds all that a user needs, wherever it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ("colosseum", "conf", "recipes")
MINE = "defaults:\n  - debug/cpt-4k-bf16\n  - _self_\nname: mine\noptimizer:\n  lr: 0.0005\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves folders in its source."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SHIPPED:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    words = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(out), str(source)]
    subprocess.run(pip + words, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def test_every_file_ships(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in SHIPPED:
        inside = "" if folder == "colosseum" else "colosseum/"
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert f"{inside}{path.relative_to(ROOT).as_posix()}" in names


def test_a_users_recipe_derives_from_a_shipped_one(wheel: Path, tmp_path: Path) -> None:
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    zipfile.ZipFile(wheel).extractall(installed)
    elsewhere.mkdir()
    (elsewhere / "mine.yaml").write_text(MINE)
    env = {**os.environ, "PYTHONPATH": str(installed)}

    def run(*words: str) -> str:
        done = subprocess.run([sys.executable, *words], env=env, cwd=elsewhere, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("-c", "import colosseum, colosseum.recipes; print(colosseum.__file__, colosseum.recipes.__file__)")
    assert all(Path(p).is_relative_to(installed) for p in where.split())
    assert "0.0005" in run("-m", "colosseum.cli.main", "show", "mine.yaml")
