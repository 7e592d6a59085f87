"""Damaged and forged checkpoints and model folders, through the verbs that read them."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from colosseum.checkpoint.hf.config import read_config
from colosseum.errors import RefusedInput
from tests.checkpoint import made
from tests.checkpoint.hf import models
from tests.cli.conftest import Cli

ODD = (
    None,
    -1,
    0,
    1e300,
    float("nan"),
    "x",
    [],
    {},
    True,
    2**70,
    "../../etc/passwd",
    "\x1b[31m",
    "a" * 5000,
    [[]],
    1.5,
)


MAYBE = ("attention_dropout", "head_dim", "rope_scaling", "rope_theta", "partial_rotary_factor", "sliding_window")
"""Keys of config.json that a model may have."""


@pytest.mark.parametrize("name", models.CONFIGS)
def test_every_key_of_a_config_with_every_odd_value(name: str) -> None:
    """It is a model, or is refused; nothing else."""
    text = json.dumps(models.CONFIGS[name])
    config = json.loads(text)
    nested = [(key, inner) for key, value in config.items() if isinstance(value, dict) for inner in value]
    for path in [*((key,) for key in (*config, *MAYBE)), *nested]:
        for value in (*ODD, float("inf"), 10**400, ["silu"], {"a": 1}, -0.5, "1e-5", 0.0):
            changed = json.loads(text)
            place = changed if len(path) == 1 else changed[path[0]]
            place[path[-1]] = value
            with suppress(RefusedInput):
                read_config(changed)


def change_json(path: Path, rng: random.Random) -> None:
    """One value, anywhere in the document, is removed or becomes something else."""
    document = json.loads(path.read_text())
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            spots.append((node, key))
            walk(node[key])

    walk(document)
    node, key = rng.choice(spots)
    if isinstance(node, dict) and rng.random() < 0.3:
        del node[key]
    else:
        node[key] = rng.choice(ODD)
    path.write_text(json.dumps(document))


def change_bytes(path: Path, rng: random.Random) -> None:
    """The file is cut, loses eight bytes or one near its head to others, or is replaced."""
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            del data[at:]
        case 1:
            data[at : at + 8] = rng.randbytes(8)
        case 2:
            data[at % 200] ^= 1 << rng.randrange(8)
        case _:
            data[:] = rng.randbytes(50)
    path.write_bytes(data)


def verbs(folder: Path, out: Path) -> list[tuple[str, ...]]:
    if (folder / "tokenizer.json").exists():
        return [("import", "hf", str(folder), str(out), "--recipe-out", f"{out}.yaml")]
    checkpoint = str(folder / "checkpoints" / "iter_0000004")
    return [
        ("inspect", str(folder)),
        ("inspect", checkpoint, "--tensors"),
        ("expand", checkpoint, str(out), "--layers", "4"),
        ("export", "hf", checkpoint, str(out)),
        ("export", "megatron", checkpoint, str(out)),
        ("copy", checkpoint, str(out), "--verify"),
        ("average", checkpoint, checkpoint, str(out)),
    ]


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.long)])
def test_damaged_checkpoints_and_model_folders(cli: Cli, tmp_path: Path, count: int) -> None:
    """Each is read or refused in one message; a refusal leaves nothing behind."""
    models.write(tmp_path / "hf", "llama3")
    models.write_tokenizer(tmp_path / "hf")
    made.write(tmp_path / "run", layers=2, hidden=16)
    rng = random.Random(22)
    folder, out = tmp_path / "damaged", tmp_path / "out"
    for _ in range(count):
        for old in (folder, out):
            shutil.rmtree(old, ignore_errors=True)
        Path(f"{out}.yaml").unlink(missing_ok=True)
        shutil.copytree(tmp_path / rng.choice(["hf", "run"]), folder)
        path = rng.choice(sorted(p for p in folder.rglob("*") if p.is_file()))
        (change_json if path.suffix == ".json" and rng.random() < 0.7 else change_bytes)(path, rng)
        verb = rng.choice(verbs(folder, out))
        done = cli("checkpoint", *verb)
        what = (path.name, verb, done)
        assert done.code in (0, 2), what
        assert "Traceback" not in done.err and "bug" not in done.err, what
        assert "\x1b" not in done.out + done.err, what
        assert done.code == 0 or not out.exists(), what
