"""What a recipe says survives load -> write -> load, whatever its text fields hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from colosseum.bundle import to_yaml
from colosseum.errors import RefusedInput
from colosseum.recipe.load import load
from colosseum.recipe.scan import scan
from colosseum.recipe.schema import Recipe
from tests.recipe.test_load import TINY, house  # noqa: F401

# Text that some YAML reader takes for something else when it stands bare.
TRAPS = [
    *"~y n=-?:|>,\\0",
    "\\n",
    "'a'",
    '"a"',
    "[a]",
    "{a}",
    "a#b",
    "#a",
    ":a",
    "a:",
    "-a",
    "%a",
    "*a",
    "&a",
    "!a",
    "`a",
]
TRAPS += ["614e210", "1e5", "1E5", "-1e3", "+1e5", "1_0e3", "1.e5", ".5", "1e-5", "1.5", ".inf", ".nan", "0x1f", "0o17"]
TRAPS += ["017", "1_000", "12:30:00", "2020-01-01", "null", "yes", "no", "on", "off", "true", "<<", "???", "@a"]
TRAPS += [
    "",
    " ",
    "a b",
    "a: b",
    "a #b",
    " a",
    "a ",
    "a\tb",
    "\n",
    "a\nb",
    "\x85",
    "a\u2028b",
    "\u2029",
    "\ufeff",
    "\x7f",
]
TRAPS += ["\x9b", "\u202e", "💥", "é" * 200, "x " * 100, "x" * 150 + "  y", "\\x41", "\x1b[2J"]
TEXTS = st.sampled_from(TRAPS) | st.text(max_size=40) | st.from_regex(r"[-+]?[0-9_]{1,4}\.?[eE][-+]?[0-9]{1,4}")


def whole() -> dict[str, Any]:
    """A recipe in which every optional section and text field stands."""
    data = load("debug/dpo", cluster="dgx-h100").recipe.as_data()
    data["data"] = {**data["data"], "blend": [{"path": "p", "weight": 1.0, "tags": ["t"]}], "cache_dir": "c"}
    data["overlap"]["tp_comm_cfg"] = "x"
    data["cluster"].update(venv="v", modules=["m"], env={"X": "x"})
    data["cluster"]["slurm"].update(account="a", qos="q", reservation="r", constraint="c", exclude=["n"], extra=["e"])
    return data


def text_places(node: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every text in a recipe's data."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, str):
            yield node, key
        elif isinstance(value, dict | list):
            yield from text_places(value)


WHOLE = whole()
PLACES = list(text_places(WHOLE))


@settings(max_examples=30, deadline=None)
@given(TEXTS)
def test_every_text_field_survives(text: str) -> None:
    before = [node[key] for node, key in PLACES]
    taken = 0
    try:
        for node, key in PLACES:
            old, node[key] = node[key], text
            try:
                Recipe.from_data(WHOLE)
                taken += 1
            except ValidationError:
                node[key] = old
        recipe = Recipe.from_data(WHOLE)
    finally:
        for (node, key), value in zip(PLACES, before, strict=True):
            node[key] = value
    written = scan(to_yaml(recipe.as_data()).decode(), "recipe.yaml")
    assert "${" in text or not written.faults
    assert Recipe.from_data(written.data) == recipe
    one_line = len(text) > 0 and all(31 < ord(c) != 127 for c in text)
    assert taken >= 20 or not one_line, "most fields take any line of text"


@pytest.mark.parametrize(
    "text", [trap for trap in TRAPS if trap not in ("", "???", "\x7f", "\n", "a\nb", "a\tb", "\x1b[2J")]
)
def test_a_loaded_text_is_written_and_loaded_again(house: Path, text: str) -> None:  # noqa: F811
    (house / "tiny.yaml").write_bytes(TINY.encode() + to_yaml({"overlap": {"tp_comm_cfg": text}}))
    recipe = load(str(house / "tiny.yaml")).recipe
    assert recipe.overlap.tp_comm_cfg == text
    data = recipe.as_data()
    del data["cluster"]
    (house / "again.yaml").write_bytes(to_yaml(data))
    assert load(str(house / "again.yaml")).recipe == recipe


@pytest.mark.parametrize("name", ["614e210", "1e5", "1E-5", "123", "no", "0x1f"])
def test_a_name_like_a_number_survives(house: Path, name: str) -> None:  # noqa: F811
    recipe = load(str(house / "tiny.yaml"), [f'name="{name}"', f'cluster.slurm.account="{name}"']).recipe
    again = Recipe.from_data(scan(to_yaml(recipe.as_data()).decode(), "").data)
    assert (again.name, again.cluster.slurm.account) == (name, name)


def test_references_make_up_no_reference(house: Path) -> None:  # noqa: F811
    """``$`` and ``{name}`` put together would be read as a reference when the recipe is read back."""
    extra = 'checkpoint: {from: "$${tokenizer.eod}"}\ntokenizer: {eod: "{name}"}\n'
    (house / "tiny.yaml").write_text(TINY + extra)
    with pytest.raises(RefusedInput, match="must not form another reference"):
        load(str(house / "tiny.yaml"))
