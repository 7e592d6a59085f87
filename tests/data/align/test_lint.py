"""Every finding of the lint on a row made for it, the figures, the limits; the edit distance against the plain one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colosseum.data.align.distance import edit_distance, nearly_same
from colosseum.data.align.encode import Spec
from colosseum.data.align.lint import LIMITS, MEANING, lint
from colosseum.data.align.packing import pack
from colosseum.data.align.rows import Kind

from .conftest import spec, write_rows

TURN = "<extra_id_1>"
U, A = {"from": "User", "value": "Hello?"}, {"from": "Assistant", "value": "well"}
GOOD = {"system": "", "mask": "User", "conversations": [U, A]}


def chat(*turns: Any, **more: Any) -> dict[str, Any]:
    return {**GOOD, "conversations": list(turns), **more}


def pair(chosen: str, rejected: str, **more: Any) -> dict[str, Any]:
    return {"prompt": "Hello\n", "chosen": chosen + f"\n{TURN}", "rejected": rejected + f"\n{TURN}", **more}


GOOD_PAIR = pair("well, thank you", "who is it that asks?")
LONG = "well " * 60
ROWS: dict[str, Any] = {
    "not-json": b'{"system": ',
    "not-utf8": b'{"system": "\xff"}',
    "wrong-type": chat({"from": "User", "value": 3}),
    "schema": {"text": "a document"},
    "null": chat({"from": "User", "value": None}, A),
    "surrogate": b'{"conversations": [{"from": "User", "value": "\\ud800"}]}',
    "role": {"messages": [{"role": "oracle", "content": "Hi"}]},
    "role-order": {"messages": [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Hi"}]},
    "mixed-pair": {"prompt": "Hi", "chosen": [A], "rejected": [A]},
    "mixed-schema": {"input": "a", "output": "b"},
    "control-token": chat({"from": "User", "value": TURN}, A),
    "nul-character": chat({"from": "User", "value": "a\0"}, A),
    "duplicate": GOOD,
    "turn-order": chat(U, U, A),
    "empty": chat(U, A, mask="User,Assistant"),
    "emptied": chat({"from": "User", "value": LONG}, A),
    "cut": chat(U, {"from": "Assistant", "value": LONG}),
    "unknown-key": {**chat(U, A, system="x"), "source": "web"},
    "null-value": chat(U, A, system=None),
    "empty-label": chat(U, {**A, "label": ""}),
    "same-answers": pair("well", "well"),
    "near-identical": pair("well " * 8, "well " * 7 + "bell "),
    "too-long": pair(LONG, "well"),
    "unclosed": {"prompt": "Hello\n", "chosen": "well", "rejected": "there"},
    "prompt-prefix": {**pair("\n I am well", "no"), "prompt": "Hello\n"},
}
PAIRS = {"same-answers", "near-identical", "too-long", "unclosed", "prompt-prefix", "mixed-pair"}


def spec_of(file: Path) -> Callable[[Kind], Spec]:
    return lambda kind: spec(file, kind, seq_length=56)


@pytest.mark.parametrize("code", ROWS)
def test_a_finding(code: str, special_file: Path, tmp_path: Path) -> None:
    row = ROWS[code]
    good = GOOD_PAIR if code in PAIRS else GOOD
    file = tmp_path / "a.jsonl"
    line = row if isinstance(row, bytes) else json.dumps(row).encode()
    file.write_bytes(json.dumps(good).encode() + b"\n\n" + line + b"\n")
    report = lint(file, spec=spec_of(special_file))
    assert code in report.findings, dict(report.findings)
    assert report.findings[code].rows == 1
    assert report.findings[code].examples[0][0] == 3, "the line of the file"
    assert (code in report.over()) == (LIMITS[code] is not None)
    others = set(report.findings) - {code} - {c for c in LIMITS if LIMITS[c] is None}
    assert not others - {"turn-order"}


def test_every_code_has_words_and_a_case() -> None:
    assert set(LIMITS) == set(MEANING)
    assert set(LIMITS) - set(ROWS) == {"template"}


def test_without_a_tokenizer(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "a.jsonl", [GOOD_PAIR, pair("well", "well"), pair(f"{TURN}User\n", "a")])
    report = lint(file)
    assert report.counts is None
    assert set(report.findings) == {"same-answers", "control-token"}
    assert (report.usable, report.pairs) == (2, 3)
    document = report.as_json(LIMITS, gbs=2)
    assert document["epoch"] == {"samples": 2, "steps": 1, "left_over": 0}
    assert document["pairs"]["unit"] == "characters"


def test_figures_are_those_of_training(special_file: Path, tmp_path: Path) -> None:
    from colosseum.data.align.cache import build_cache

    rows: list[object] = [GOOD, chat(U, {"from": "Assistant", "value": LONG}), chat(U, A, system="x", mask="User,Tool")]
    file = write_rows(tmp_path / "a.jsonl", rows)
    report = lint(file, spec=spec_of(special_file))
    assert report.counts == build_cache(file, spec(special_file, seq_length=56), tmp_path).counts
    assert report.silent_roles == ("Tool",)
    lengths = build_cache(file, spec(special_file, seq_length=56), tmp_path).lengths - 1
    packed = report.packing(gbs=None)
    assert packed is not None
    assert packed.efficiency == lengths.sum() / (packed.rows * 56)
    assert packed.rows == len(pack(lengths, 56).rows)
    one_by_one = report.packing(gbs=1)
    assert one_by_one is not None
    assert one_by_one.rows == len(lengths), "samples of different steps share no row"


def _plain(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


WORDS = st.text("abc", max_size=12)


@given(a=WORDS, b=WORDS, threshold=st.sampled_from([0.0, 0.05, 0.2, 0.5, 1.0]))
def test_edit_distance(a: str, b: str, threshold: float) -> None:
    assert edit_distance(a, b) == edit_distance(b, a) == _plain(a, b)
    assert nearly_same(a, b, threshold) == (_plain(a, b) <= int(threshold * max(len(a), len(b))))


def test_long_answers_are_quick() -> None:
    text = "".join(chr(97 + i * 7 % 26) for i in range(50_000))
    assert nearly_same(text, f"{text[:30_000]}XY{text[30_002:]}", 0.05)
    assert not nearly_same(text, text[::-1].upper(), 0.05)
