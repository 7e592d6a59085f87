"""``check_config.py`` with stand-in engines, and what start.py does with its answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from colosseum.bundle import write_bundle
from colosseum.engines import start
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.launch.bundles.compile import compile_bundle
from colosseum.launch.bundles.effective import changes
from colosseum.planning.resolve import resolve
from tests.engines.conftest import Rendered, Resolved

TREE = """
import dataclasses
@dataclasses.dataclass
class Part:
    decay: float = 0.0
    group: object = None
@dataclasses.dataclass
class Whole:
    part: Part
    layers: tuple = ()
def train(config): raise SystemExit("trained")
def finish(config): config.part.decay, config.part.group = 0.033, 10
"""
"""As Megatron-Bridge: a function finishes the configuration, and overwrites what it was given."""
PARSER = """
import argparse, os
def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float); parser.add_argument("--async-save", action="store_true")
    return parser.parse_args()
def validate_args(args, defaults):
    assert os.environ["WORLD_SIZE"] == "8"
    print("validated"); args.async_save = False
"""
"""As Megatron-LM: validate_args() turns an option off and prints."""


@pytest.fixture
def engine(tmp_path: Path, rendered: Rendered) -> Path:
    """bundle/engine of a launch, with both programs."""
    folder = tmp_path / "bundle/engine"
    folder.mkdir(parents=True)
    for name, data in rendered("generic", "engine=bridge").files.items():
        (folder / name).write_bytes(data)
    (folder / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: True)\n")
    return folder


def answer(folder: Path, checks: dict[str, Any], arguments: tuple[str, ...] = ()) -> Any:
    command = {"checks": checks, "arguments": list(arguments), "env": {}, "home": None}
    (folder / "command.json").write_text(json.dumps(command))
    words = [sys.executable, str(folder / "check_config.py")]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["changed"]


def test_what_a_tree_s_engine_overwrites_is_listed(engine: Path) -> None:
    (engine / "their.py").write_text(TREE)
    part = {"call": "their:Part", "with": {"decay": 0.1, "group": None}}
    whole = {"call": "their:Whole", "with": {"part": part, "layers": [1, 2]}}
    (engine / "tree.json").write_text(json.dumps({"call": "their:train", "with": {"config": whole}}))
    checks = {"tree": "tree.json", "node": "config", "finish": "their:finish", "ranks": 8}
    assert answer(engine, checks) == [{"field": "part.decay", "said": "0.1", "is": "0.033"}]
    assert answer(engine, {**checks, "finish": None}) == []  # nothing finishes it: its own values hold


def test_what_a_parser_s_engine_turns_off_is_listed(engine: Path) -> None:
    (engine / "theirs.py").write_text(PARSER)
    found = answer(engine, {"arguments": "theirs", "ranks": 8}, ("--lr", "0.1", "--async-save"))
    assert found == [{"field": "async_save", "said": "True", "is": "False"}]


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("print('{\"changed\": []}')", ""),
        ("import json; print(json.dumps({'changed': [{'field': 'lr', 'said': '1', 'is': '2'}]}))", "lr = 1 becomes 2"),
        ("raise SystemExit('no GPU here')", ""),  # what it cannot be asked for stops no run
    ],
)
def test_a_run_that_would_train_something_else_is_stopped(
    engine: Path, program: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (engine / "check_config.py").write_text(program)
    monkeypatch.setattr(start, "HERE", engine)
    problem = start.checked({"checks": {}, "engine": "Megatron-LM"})
    assert (says in problem) == bool(problem or not says)
    assert bool(problem) == bool(says)


def test_a_bundle_is_checked_with_an_environment_of_its_own(tmp_path: Path, resolved: Resolved) -> None:
    for engine in ("bridge", "nemo1"):
        recipe = resolved("generic", f"engine={engine}", "tokenizer.kind=tokenizer_json", "tokenizer.path=/t/t.json")
        compiled = compile_bundle(recipe, resolve(recipe))
        write_bundle(tmp_path / engine, compiled.files, compiled.manifest, umask=0o027)
    with pytest.raises(RefusedInput, match="engine nemo1 cannot be asked"):
        changes(tmp_path / "nemo1", Path(sys.executable))
    with pytest.raises(EnvironmentFault, match="megatron"):  # Megatron-Bridge is not in this environment
        changes(tmp_path / "bridge", Path(sys.executable))
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\necho \'{"changed": [{"field": "a.b", "said": "1", "is": "2"}]}\'\n')
    fake.chmod(0o755)
    assert [(one.field, one.said, one.now) for one in changes(tmp_path / "bridge", fake)] == [("a.b", "1", "2")]
