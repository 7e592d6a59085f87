"""Tiny data made once, and runs started through the installed command."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from colosseum.bundle import to_yaml
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir
from tests.runtime import tiny

COLOSSEUM = Path(sys.executable).parent / "colosseum"
TIMEOUT_S = 240


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    tiny.write_data(folder)
    return folder


@dataclass(frozen=True)
class Ended:
    """A command that came to its end."""

    code: int
    out: str
    err: str
    run: RunDir

    @property
    def outcome(self) -> dict[str, Any]:
        found = self.run.attempt(self.run.attempt_numbers()[-1]).read_outcome()
        assert found is not None, self.err
        return found._asdict()

    @property
    def said(self) -> str:
        """stderr without its line breaks."""
        return " ".join(self.err.split())


@dataclass(frozen=True)
class Place:
    """A folder to train in."""

    folder: Path

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def compiled(self) -> Path:
        """What torch.compile would write."""
        return self.folder / "compiled"

    def start(self, *words: str, verb: tuple[str, str] = ("train", "cpt")) -> subprocess.Popen[str]:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80", "TORCHINDUCTOR_CACHE_DIR": str(self.compiled)}
        command = [COLOSSEUM, *verb, *words, "--runs", str(self.runs)]
        return subprocess.Popen(
            command, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def end(self, process: subprocess.Popen[str], run: RunDir | None = None) -> Ended:
        out, err = process.communicate(timeout=TIMEOUT_S)
        return Ended(process.returncode, out, err, run or self.newest())

    def train(self, *words: str) -> Ended:
        return self.end(self.start(*words))

    def resume(self, run: RunDir) -> Ended:
        return self.end(self.start("--from", str(run.root)), run)

    def newest(self) -> RunDir:
        """The run that was begun last: names begin with the time."""
        return RunDir(max(self.runs.glob("*"), default=self.runs))

    def recipe(self, recipe: Recipe) -> str:
        path = self.folder / "recipe.yaml"
        data = recipe.as_data()
        del data["cluster"]  # a recipe chooses no site facts
        path.write_bytes(to_yaml(data))
        return str(path)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
