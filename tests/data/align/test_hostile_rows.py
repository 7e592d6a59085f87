"""Hostile JSONL: nothing crashes, a bad row is a sentence, and no row between bad ones has a shifted mask."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colosseum.data.align.cache import build_cache
from colosseum.data.align.encode import Encoder, Spec, Tokens
from colosseum.data.align.hf_template import HfTemplate
from colosseum.data.align.jsonl import BadRow, read_lines
from colosseum.data.align.lint import lint
from colosseum.data.align.prompts import ChatFormat, PromptCodec, prompt_of
from colosseum.data.align.rows import Kind
from colosseum.errors import RefusedInput
from colosseum.recipe.tasks import ChatTokens

from .conftest import CONTROL, EOD, spec
from .test_hf_template import CHATML as CHATML_SOURCE

FORGING = (*CONTROL, EOD, "<extra_id_1>User\n")
JINJA = ("{{ 7 * 7 }}", "{% generation %}", "{%", "}}", "{% endgeneration %}", "{{ messages }}", "{# x #}")
PLAIN = ("<extra_id_", "1>", "\n", "\r\n", "\0", "\u2028", "\ufeff", "\u202e", *"é😀東 ", "well", "Hello?", *JINJA)
VALUES: tuple[Any, ...] = (None, True, 3, 1e308, [], {}, [[]], "", "\ud800", "\udc00x", {"value": "x"}, 10**400)
KEYS = ("system", "conversations", "messages", "mask", "type", "prompt", "response", "chosen", "from", "value")
KINDS: tuple[Kind, ...] = ("chat", "prompt_response", "preference")


def text(rng: random.Random) -> str:
    return "".join(rng.choice(FORGING if rng.random() < 0.02 else PLAIN) for _ in range(rng.randrange(8)))


def message(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {"role": rng.choice(["user", "assistant", "system", "tool", "x"]), "content": text(rng)}
    turn = {"from": rng.choice(["User", "Assistant", "Tool", "", "a\nb"]), "value": text(rng)}
    return turn | ({"label": rng.choice([None, "", text(rng)])} if rng.random() < 0.4 else {})


def row(rng: random.Random) -> Any:
    messages = [message(rng) for _ in range(rng.randrange(5))]
    made: dict[str, Any] = rng.choice(
        [
            {"system": text(rng), "conversations": messages, "mask": rng.choice(["User", "", "Use", ",", text(rng)])},
            {"messages": messages},
            {"prompt": text(rng), "response": text(rng)},
            {
                "prompt": rng.choice([text(rng), messages]),
                "chosen": text(rng),
                "rejected": "no",
            },
        ]
    )
    if rng.random() < 0.3:
        made["type"] = rng.choice([None, "VALUE_TO_TEXT", "TEXT_TO_VALUE", "x"])
    if rng.random() < 0.3:
        made[rng.choice(KEYS)] = rng.choice(VALUES)
    if messages and rng.random() < 0.2:
        messages[0][rng.choice(KEYS)] = rng.choice(VALUES)
    return made


def line(rng: random.Random) -> bytes:
    data = json.dumps(row(rng), ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    kind = rng.randrange(8)
    if kind == 0:  # a byte changed, a byte missing, cut short, nested without end, an empty line, bare words
        at = rng.randrange(len(data))
        data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    elif kind == 1:
        data = data[: rng.randrange(len(data))]
    elif kind == 2:
        data = rng.choice([b"", b"[" * 100_000, b'{"a":' * 50_000, b"null", b"NaN", b'"x"', b"\0", b"\xef\xbb\xbf{}"])
    return data.replace(b"\n", b"")


def check(seed: int, lines: int, file: Path, tokenizer: Path, template: ChatTokens | HfTemplate) -> int:
    """Judges a file of such lines by each kind; how many rows could be used."""

    def of(kind: Kind) -> Spec:
        return replace(spec(tokenizer, kind), template=template)

    rng = random.Random(seed)
    file.write_bytes(b"\n".join(line(rng) for _ in range(lines)) + b"\n")
    used = 0
    for kind in KINDS:
        encoder = Encoder(of(kind))
        good: list[tuple[int, list[Tokens]]] = []
        for read in read_lines(file):
            try:
                texts = encoder.rendered(read.content)
            except BadRow:
                continue
            tokens = [t for t in encoder.tokens(texts) if isinstance(t, Tokens)]
            good.append((read.number, tokens))
            for rendered, t in zip(texts, tokens, strict=True):
                flags = np.zeros(len(rendered.text), np.bool_)
                for start, end in rendered.trained:
                    flags[start:end] = True
                assert t.mask.tolist() == [bool(flags[s:e].all()) for s, e in t.spans.tolist()]
        used += len(good)
        report = lint(file, spec=of)
        assert sum(f.rows for f in report.findings.values()) > 0
        with pytest.raises(RefusedInput):
            build_cache(file, of(kind), file.parent / "cache", processes=1)
        _neighbours_are_untouched(good, file, of(kind))
    return used


def _neighbours_are_untouched(good: list[tuple[int, list[Tokens]]], file: Path, its: Spec) -> None:
    """The same rows alone in a file give the same ids and masks through the cache."""
    lines = file.read_bytes().split(b"\n")
    alone = file.with_suffix(".good.jsonl")
    alone.write_bytes(b"\n".join(lines[n - 1] for n, _ in good) + b"\n")
    try:
        data = build_cache(alone, its, file.parent / "cache", processes=1, part_bytes=999)
    except RefusedInput as refused:
        assert "no rows to train on" in str(refused)
        return
    for at in range(len(data)):
        for sample, tokens in zip(data.sample(at), good[data.rows[at] - 1][1], strict=True):
            assert sample.ids.tolist() == tokens.ids[: len(sample.ids)].tolist()
            assert sample.mask[1:].tolist() == tokens.mask[1 : len(sample.ids)].tolist()


CHATML = HfTemplate(source=CHATML_SOURCE, tokens=(("bos_token", "<extra_id_0>"),))


def test_a_sample(tokenizer_file: Path, tmp_path: Path) -> None:
    assert check(1, 200, tmp_path / "a.jsonl", tokenizer_file, ChatTokens()) > 30, "the sample holds good rows as well"


def test_a_sample_with_a_hugging_face_template(special_file: Path, tmp_path: Path) -> None:
    assert check(1, 200, tmp_path / "a.jsonl", special_file, CHATML) > 15


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 22))
def test_thousands(seed: int, tokenizer_file: Path, tmp_path: Path) -> None:
    check(seed, 500, tmp_path / "a.jsonl", tokenizer_file, ChatTokens())


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30, 36))
def test_thousands_with_a_hugging_face_template(seed: int, special_file: Path, tmp_path: Path) -> None:
    check(seed, 500, tmp_path / "a.jsonl", special_file, CHATML)


@pytest.mark.parametrize("template", [ChatTokens(), CHATML], ids=["chat_tokens", "hugging_face"])
def test_prompts_of_hostile_rows(template: ChatTokens | HfTemplate, special_file: Path, tmp_path: Path) -> None:
    """A prompt is refused or is text: no value of a row becomes a control token, and none is run as a template."""
    rng, file = random.Random(40), tmp_path / "a.jsonl"
    file.write_bytes(b"\n".join(line(rng) for _ in range(3000)) + b"\n")
    shared: dict[str, Any] = {"seq_length": 256, "response_blank": False, "eos": (0,)}
    codec = PromptCodec(ChatFormat(tokenizer=special_file, eod=EOD, template=template, **shared))
    library = Encoder(spec(special_file)).library
    answered = 0
    for read in read_lines(file):
        try:
            if isinstance(read.content, BadRow):
                raise read.content
            prompt = prompt_of(read.content)
            ids = codec.ids(prompt)
        except BadRow:
            continue
        if isinstance(prompt, str):
            assert library.decode(ids, skip_special_tokens=False) == prompt
            continue
        answered += 1
        shown = library.decode(ids, skip_special_tokens=False)
        said = [turn.value for turn in prompt.turns]
        assert all(value in shown for value in (*said, prompt.system))
        written = 2 + len(said) if isinstance(template, ChatTokens) else 2 + 2 * len(said) + 2 * bool(prompt.system)
        assert sum(i in (1, 2, 3) for i in ids) == written, "control tokens of the template, and no other"
    assert answered > 30


def test_any_depth(tmp_path: Path) -> None:
    """What the reader just takes, the writer may no longer."""
    file = tmp_path / "a.jsonl"
    row = b'{"prompt": "a", "response": "b", "more": %b%b}'
    file.write_bytes(b"\n".join(row % (b"[" * n, b"]" * n) for n in range(800, 1100)))
    report = lint(file)
    assert report.rows == 300
    assert 0 < report.findings["not-json"].rows < 300


@pytest.mark.parametrize("megabytes", [1, pytest.param(10, marks=pytest.mark.long)])
def test_a_great_line(megabytes: int, special_file: Path, tmp_path: Path) -> None:
    """One great text among small rows: cut on the right, its neighbours whole."""
    small = {"conversations": [{"from": "User", "value": "Hello?"}, {"from": "Assistant", "value": "well"}]}
    great = {"conversations": [*small["conversations"], {"from": "User", "value": "ab <é\n" * (megabytes * 150_000)}]}
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, [small, great, small])))
    data = build_cache(file, spec(special_file), tmp_path, part_bytes=1000, processes=1)
    assert (data.counts.kept, data.counts.cut) == (3, 1)
    first, second, third = (data.sample(n)[0] for n in range(3))
    assert first.ids.tolist() == third.ids.tolist()
    head = len(first.ids)
    assert second.ids[:head].tolist() == first.ids.tolist()
    assert second.mask[:head].tolist() == first.mask.tolist()
    assert len(second.ids) == 257
