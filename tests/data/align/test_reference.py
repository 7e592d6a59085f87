"""Ids and masks equal those of transformers' apply_chat_template (reference/make_figures.py made the figures)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colosseum.data.align.encode import Encoder, Tokens
from colosseum.data.align.hf_template import HfTemplate
from colosseum.data.align.rows import Pair, parse_row

from .conftest import spec

HERE = Path(__file__).parent / "reference"
ROWS = json.loads((HERE / "figures.json").read_text())["rows"]


def encoder(row: dict[str, Any], kind: str) -> Encoder:
    named = (("bos_token", "<extra_id_0>"), ("eos_token", "<|endoftext|>"))
    template = HfTemplate(source=row["template"], tokens=named)
    return Encoder(replace(spec(HERE / "tokenizer.json", kind), template=template))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_like_transformers(number: int) -> None:
    row = ROWS[number]
    made = encoder(row, "chat")
    (tokens,) = made.tokens(made.rendered({"messages": row["messages"]}))
    assert isinstance(tokens, Tokens)
    assert tokens.ids.tolist() == row["ids"]
    assert tokens.mask.tolist() == [bool(m) for m in row["mask"]]
    if row["messages"][-1]["role"] == "user":
        pair = parse_row({"prompt": row["messages"], "chosen": "a", "rejected": "b"}, "preference")
        assert isinstance(pair, Pair)
        assert encoder(row, "preference").prompt(pair).text == row["prompt"]


def test_the_figures_hold_both_kinds_of_row() -> None:
    assert any(r["messages"][0]["role"] == "system" for r in ROWS)
    assert all(0 < sum(r["mask"]) < len(r["mask"]) for r in ROWS)
