"""Commands in this process (``cli``), and a house of inputs that a launch finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from colosseum.bundle import write_bundle
from colosseum.cli.main import main
from colosseum.data.indexed import write_dataset
from colosseum.launch.bundles.compile import compile_bundle
from colosseum.planning.resolve import apply_layout, resolve
from colosseum.recipe.load import load


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """stderr without its line breaks."""
        return " ".join(self.err.split())


Cli = Callable[..., Done]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Runs one command in a fresh folder, with no setting of the user's."""
    for name in ("COLOSSEUM_CLUSTER", "COLOSSEUM_RUNS", "COLOSSEUM_DEBUG", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        capfd.readouterr()
        code = main(words)
        captured = capfd.readouterr()
        return Done(code, captured.out, captured.err)

    return run


DATA = ("data.blend=[{path: tokens, weight: 1}]", "tokenizer.path=tokenizer.json")
"""Overrides that name the files of ``inputs``."""
TOKENIZER = '{"model": {}, "added_tokens": [{"id": 0, "content": "<|endoftext|>", "special": true}]}'


def write_tokens(prefix: Path) -> None:
    """A dataset with a training and a validation part for every shipped recipe: 100 documents of 400 tokens."""
    with write_dataset(prefix, 512) as writer:
        for _ in range(100):
            writer.add_document([1] * 400)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Files that a launch of a cpt recipe asks for."""
    write_tokens(tmp_path / "tokens")
    (tmp_path / "tokenizer.json").write_text(TOKENIZER)
    return tmp_path


INSTEAD = """
import os, sys
if "RANK" in os.environ:
    del os.environ["PYTHONPATH"]
    os.execv(sys.executable, [sys.executable, {program!r}])
"""
"""sitecustomize.py: Python runs it first, so a rank becomes the program. The bundle itself is a real one."""


def program_bundle(target: Path, program: str, *, ranks: int, base: Path, more: Sequence[str] = ()) -> Path:
    """A bundle whose ranks run ``program`` (Python text) instead of training: its site's PYTHONPATH sees to that."""
    words = [f"{k}={v}" for k, v in (("resources.gpus", ranks), ("batch.gbs", 16), ("name", "program"))]
    words += [f"data.blend=[{{path: {base / 'tokens'}, weight: 1}}]", f"tokenizer.path={base / 'tokenizer.json'}"]
    instead = target.parent / "instead"
    instead.mkdir()
    (instead / "sitecustomize.py").write_text(INSTEAD.format(program=str(target.parent / "program.py")))
    (target.parent / "program.py").write_text(program)
    recipe = load("debug/cpt-4k-bf16", [*words, f"cluster.env.PYTHONPATH={instead}", *more], cluster="local").recipe
    plan = resolve(recipe)
    compiled = compile_bundle(apply_layout(recipe, plan.layout), plan)
    write_bundle(target, compiled.files, compiled.manifest)
    return target
