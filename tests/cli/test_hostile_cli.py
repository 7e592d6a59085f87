"""Hundreds of mutated recipes and words through the command: exit 0 or 2, soon, and nothing but words about it."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colosseum.recipe.load import load
from tests.cli.conftest import Cli
from tests.recipe.test_hostile import SECRET, base, mutate

SHELL = [
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned",
    "' ; touch pwned ; '",
    '" ; touch pwned ; "',
    "a\nb",
    "$HOME",
]
SLOW_S = 5.0
"""Of the processor: the machine may be busy with other work."""


def check(cli: Cli, folder: Path, *words: str) -> int:
    """Runs a command, and what must hold whatever it was given."""
    start = time.process_time()
    done = cli(*words)
    assert time.process_time() - start < SLOW_S, words
    assert done.code in (0, 2), (words, done)
    for text in (done.out, done.err):
        assert "Traceback" not in text, words
        assert SECRET not in text, words
    assert not (folder / "pwned").exists(), words
    return done.code


def test_hundreds_of_mutated_recipes(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", SECRET)
    rng, whole = random.Random(11), base()
    codes = []
    for number in range(250):
        data = copy.deepcopy(whole)
        mutate(data, rng)
        (tmp_path / "mutant.yaml").write_text(yaml.safe_dump(data))
        verb = ("validate",) if number % 2 else ("train", "cpt", "--dry-run", "--json")
        codes.append(check(cli, tmp_path, *verb[:2], "mutant.yaml", *verb[2:]))
    assert codes.count(2) > 100
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mutant.yaml"], "a dry run writes nothing"


def text_fields() -> list[str]:
    found = []

    def walk(value: object, path: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{path}.{key}" if path else key)
        elif isinstance(value, str) or value is None:
            found.append(path)

    walk(load("colosseum-355b/cpt-fp8", cluster="dgx-h100").recipe.as_data(), "")
    return found


@pytest.mark.parametrize("hostile", SHELL)
def test_shell_metacharacters_in_every_text(cli: Cli, tmp_path: Path, hostile: str) -> None:
    run = ("train", "cpt", "--stage", "fp8", "--cluster", "dgx-h100", "--dry-run", "--json")
    accepted = 0
    for path in text_fields():
        word = f"{path}={json.dumps(hostile)}"
        start = time.process_time()
        done = cli(*run, word)
        assert time.process_time() - start < SLOW_S
        assert done.code in (0, 2), (word, done)
        if done.code == 0:
            accepted += 1
            # All that differs from script to script: bash reads it, and nothing but variables comes of it.
            values, _, _ = json.loads(done.out)["script"]["text"].partition("# --- from here on")
            ran = subprocess.run(["bash", "-c", values], cwd=tmp_path, capture_output=True, text=True)
            assert (ran.returncode, ran.stderr) == (0, ""), (word, ran)
        assert list(tmp_path.iterdir()) == [], word
    assert accepted >= (0 if "\n" in hostile else 2), "some texts may hold anything, quoted"


KEYS = st.sampled_from(
    ["name", "batch.gbs", "parallelism.tp", "data.blend", "hydra.run.dir", "x.y", "", "task.kind", "~"]
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=KEYS | TEXTS, value=TEXTS, prefix=st.sampled_from(["", "+", "++", "~"]))
def test_any_override(cli: Cli, tmp_path: Path, key: str, value: str, prefix: str) -> None:
    word = f"{prefix}{key}={value}"
    if word.startswith("-"):
        return  # an option, not an override
    check(cli, tmp_path, "validate", "debug/cpt-4k-bf16", word)


NUMBERS = ("1e-300", "1e300", "1e-320", "0", "-1", "0.0", "-0.0", "1e18", "9007199254740993", "1" + "0" * 30, ".nan",
           ".inf", "null", "true", "''", "[]", "{}", "[[]]", '"\\u0000"')  # fmt: skip


@pytest.mark.long
def test_every_field_with_every_odd_number(cli: Cli, tmp_path: Path) -> None:
    """2,926 lines of `plan --batch`: each gets its one answer, a plan or a refusal."""
    paths: list[str] = []

    def walk(value: object, path: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{path}.{key}" if path else key)
        else:
            paths.append(path)

    walk(load("debug/cpt-4k-bf16").recipe.as_data(), "")
    words = [f"{path}={value}" for path in paths for value in NUMBERS]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps({"id": w, "overrides": [w]}) + "\n" for w in words))
    done = cli("plan", "debug/cpt-4k-bf16", "--batch", "asked.jsonl")
    assert (done.code, done.err) == (0, "")
    assert [json.loads(line)["id"] for line in done.out.splitlines()] == words
