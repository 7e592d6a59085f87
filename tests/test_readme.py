"""Every command of README.md does what it says."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUN_ELSEWHERE = {
    "scripts/demo": "tests/test_demo.py",
    "pip install -e .": "scripts/setup",
    "pip install -e '.[train]'": "scripts/setup",
}
"""Commands that another part of the checks runs, and which."""


def _blocks(language: str) -> Iterator[str]:
    yield from re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


COMMANDS = [line.split("  #")[0].strip() for block in _blocks("sh") for line in block.splitlines()]
OURS = [c for c in COMMANDS if c not in RUN_ELSEWHERE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds README.md and the files that its YAML blocks show, named in their first line."""
    path = tmp_path_factory.mktemp("readme")
    shutil.copy(ROOT / "README.md", path)
    for block in _blocks("yaml"):
        name = block.splitlines()[0].removeprefix("# ")
        (path / name).write_text(block)
    return path


def test_commands_run_elsewhere_are_really_there() -> None:
    for command, place in RUN_ELSEWHERE.items():
        assert command in COMMANDS
        assert (ROOT / place).is_file()


@pytest.mark.parametrize("command", OURS)
def test_command(command: str, folder: Path) -> None:
    program, *words = shlex.split(command)
    assert program == "colosseum"
    argv = [sys.executable, "-m", "colosseum.cli.main", *words]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
