"""Hostile recipes: refused or loaded, in bounded time, and nothing they say is executed or read."""

from __future__ import annotations

import copy
import random
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from colosseum.errors import RefusedInput
from colosseum.recipe.load import load
from colosseum.recipe.scan import scan
from colosseum.recipe.schema import Recipe
from tests.recipe.test_load import MODEL, TINY, house  # noqa: F401

SECRET = "s3cr3t-value"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    10**18,
    -(10**18),
    10**400,
    1e308,
    -1e308,
    float("inf"),
    float("nan"),
    0.5,
    "",
    "auto",
    "8",
    "no",
    "\x00",
    "\u202e",
    "é" * 500,
    "x" * 10_000,
    "💥",
    "$(touch owned)",
    "`touch owned`",
    "; touch owned #",
    "' ; touch owned '",
    '"; touch owned; "',
    "a\nb",
    "../../../etc/passwd",
    "???",
    [],
    {},
    [[[]]],
    {"": 1},
    {"_target_": "os.system"},
    "${oc.env:SECRET}",
    "${name}",
    "${missing.key}",
    "${hydra:runtime.cwd}",
    ["x"] * 300,
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = ["", "zz", "_target_", "hydra", "__class__", "model_config", "moe", "dpo", "é", "a.b", "0", "from", "source"]


def base() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(TINY)
    del data["defaults"]
    data["hardware"]["peak_flops"] = {"bf16": 1e12, "fp32": 1e12}
    data["hardware"]["memory_bytes_per_s"] = 1e10
    data["model"] = yaml.safe_load(MODEL.format(layers=2))
    data["cluster"] = {"name": "local", "scheduler": "local"}
    for section, value in Recipe.from_data(data).as_data().items():
        data[section] = value
    return data


def nodes(value: Any) -> list[Any]:
    """Every container inside ``value``, itself first."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(c for v in inner if isinstance(v, dict | list) for c in nodes(v))]


def mutate(data: Any, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 4)):
        where = rng.choice([n for n in nodes(data) if n])
        key = rng.choice(list(where)) if isinstance(where, dict) else rng.randrange(len(where))
        action = rng.random()
        if action < 0.6:
            where[key] = copy.deepcopy(rng.choice(VALUES))
        elif action < 0.8:
            del where[key]
        elif isinstance(where, dict):
            where[rng.choice(KEYS)] = copy.deepcopy(rng.choice(VALUES))
        else:
            where.append(copy.deepcopy(rng.choice(VALUES)))
        if not data:
            return


def test_thousands_at_the_schema() -> None:
    rng, whole = random.Random(2), base()
    accepted, start = 0, time.perf_counter()
    for _ in range(4000):
        data = copy.deepcopy(whole)
        mutate(data, rng)
        try:
            Recipe.from_data(data)
            accepted += 1
        except ValidationError:
            pass
    assert 0 < accepted < 2000
    assert time.perf_counter() - start < 20


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(SCALARS, lambda s: st.lists(s, max_size=4) | st.dictionaries(st.text(), s, max_size=4), max_leaves=20)
)
def test_any_data_at_the_schema(data: Any) -> None:
    with pytest.raises(ValidationError):
        Recipe.from_data(data)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@`, \n\t?${}~0.", max_size=60) | st.text(max_size=40))
def test_any_text_at_the_scan(text: str) -> None:
    try:
        scan(text, "f")
    except RefusedInput as refused:
        assert all(f.where.startswith("f:") for f in refused.faults)


def test_hundreds_through_load(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.chdir(house)
    rng, whole = random.Random(3), base()
    path = house / "h.yaml"
    for _ in range(300):
        data = copy.deepcopy(whole)
        mutate(data, rng)
        path.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")
        words = [f"{rng.choice(['name', 'batch.gbs', 'data.split', 'task'])}={rng.choice(VALUES)}"] * rng.randint(0, 1)
        start = time.perf_counter()
        try:
            said = str(load(str(path), words).recipe.as_data())
        except RefusedInput as refused:
            said = str(refused)
            assert refused.faults
        assert SECRET not in said
        assert time.perf_counter() - start < 2
    assert not (house / "owned").exists()


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "a: &a [*a]\n",
        "[" * 100_000,
        "a: " * 40 + "1",
        "- " * 5000 + "x",
        "x: y\n" * 2,
        "hydra: {searchpath: ['pkg://antigravity']}\n",
        "hydra.searchpath: ['pkg://antigravity']\n",
        "defaults: [{override hydra/launcher: x}]\n",
        "defaults: [hydra/config]\n",
        "defaults: [../../etc/passwd]\n",
        "defaults: ['${oc.env:SECRET}']\n",
        "defaults: [h]\n",
        "defaults: [{model: h}, {model: two}]\n",
        "defaults: 3\n",
        "x: !!python/object/apply:os.system ['touch owned']\n",
        "x: {_target_: os.system, _args_: ['touch owned']}\n",
        "name: ${oc.env:SECRET}\n",
        "name: ${oc.decode:${oc.env:SECRET}}\n",
        "x: &x {a: 1}\ny: {<<: *x}\n",
        "a: 1\n---\nb: 2\n",
        "? [a, b]\n: 1\n",
        "? *a\n: 1\n",
        "x: " + "9" * 5000 + "\n",
        "name: ${train.seed}\ntrain: {seed: '${name}'}\n",
        "name: ${model}\n",
        "x0: 'aaaaaaaaaa'\n" + "".join(f"x{i}: '${{x{i - 1}}}${{x{i - 1}}}'\n" for i in range(1, 60)),
        "# @package\nx: 1\n",
        "# @package ../../x\nx: 1\n",
        "\x00",
        "just text",
        "".join(f"k{i}: 1\n" for i in range(9000)),
        "".join(f"k{i}: [[1], ${{oc.env:SECRET}}]\n" for i in range(2000)),
        "model:\n" + "".join(f"  k{i}: ${{model.x{i}}}\n" for i in range(4000)),
        "",
    ],
)
def test_attacks_are_refused_quickly(house: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:  # noqa: F811
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.chdir(house)
    (house / "h.yaml").write_text(text)
    start = time.process_time()
    with pytest.raises(RefusedInput) as caught:
        load("h.yaml")
    assert time.process_time() - start < 1
    assert SECRET not in str(caught.value)
    assert not (house / "owned").exists()


def test_big_binary_and_missing_files(house: Path) -> None:  # noqa: F811
    (house / "big.yaml").write_text("#" * 1_000_001)
    (house / "raw.yaml").write_bytes(b"a: 1\nb: \xff\xfe\n")
    with pytest.raises(RefusedInput, match="1 MB"):
        load(str(house / "big.yaml"))
    with pytest.raises(RefusedInput, match=r"UTF-8 .*raw.yaml:2"):
        load(str(house / "raw.yaml"))
    for name in (str(house / "none.yaml"), str(house), "no/such", "\x00.yaml", "", "campaigns/x", "/dev/zero.yaml"):
        with pytest.raises(RefusedInput):
            load(name)


def test_a_syntax_error_names_its_line(house: Path) -> None:  # noqa: F811
    (house / "bad.yaml").write_text("name: x\ntask: {kind: cpt\nbatch: 3\n")
    with pytest.raises(RefusedInput, match=r"invalid YAML.*bad.yaml:\d"):
        load(str(house / "bad.yaml"))
