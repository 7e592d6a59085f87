"""The cache holds what the encoder says, row by row, whatever the parts and processes, also after a kill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colosseum.data.align import cache as module
from colosseum.data.align.cache import build_cache, open_cache
from colosseum.data.align.encode import Encoder
from colosseum.errors import EnvironmentFault, RefusedInput

from .conftest import spec, write_rows


def chat(number: int, words: int = 1) -> dict[str, Any]:
    answer = " ".join(["well"] * words)
    turns = [{"from": "User", "value": f"Number {number}?"}, {"from": "Assistant", "value": answer}]
    return {"system": "", "mask": "User", "conversations": turns}


def pair(chosen: str, rejected: str) -> dict[str, Any]:
    return {"prompt": "Hello\n", "chosen": chosen, "rejected": rejected}


@pytest.mark.parametrize(("part_bytes", "processes"), [(1 << 24, 1), (300, 1), (2000, 2)])
def test_holds_what_the_encoder_says(part_bytes: int, processes: int, special_file: Path, tmp_path: Path) -> None:
    rows: list[object] = [chat(n, 1 + n % 7) for n in range(40)]
    file = write_rows(tmp_path / "a.jsonl", rows)
    file.write_bytes(b"\xef\xbb\xbf\n" + file.read_bytes().replace(b"\n", b"\n\n", 3).rstrip(b"\n"))
    one = spec(special_file)
    data = build_cache(file, one, tmp_path / "cache", processes=processes, part_bytes=part_bytes)
    assert len(data) == data.counts.kept == 40
    lines = file.read_bytes().split(b"\n")
    encoder = Encoder(one)
    for at, row in enumerate(rows):
        (expected,) = encoder.tokens(encoder.rendered(row))  # type: ignore[arg-type]
        (sample,) = data.sample(at)
        assert sample.ids.tolist() == expected.ids.tolist()  # type: ignore[union-attr]
        assert sample.mask.tolist() == expected.mask.tolist()  # type: ignore[union-attr]
        assert json.loads(lines[data.rows[at] - 1].decode("utf-8-sig")) == row
    assert data.counts.trained_tokens == data.mask.sum()
    assert not list((tmp_path / "cache").glob("*.parts")) + list((tmp_path / "cache").glob("*.tmp-*"))


def test_length_rule_of_sft(special_file: Path, tmp_path: Path) -> None:
    """seq_length + 1 tokens; cut on the right; nothing left to train is dropped: all of it counted."""
    whole = write_rows(tmp_path / "whole.jsonl", [chat(0, 40)])
    length = len(build_cache(whole, spec(special_file), tmp_path).sample(0)[0].ids)
    masked = {**chat(3), "mask": "User,Assistant"}
    rows = write_rows(tmp_path / "rows.jsonl", [chat(0, 40), chat(1, 41), masked, chat(2, 1)])
    data = build_cache(rows, spec(special_file, seq_length=length - 1), tmp_path)
    assert (data.counts.rows, data.counts.kept, data.counts.cut, data.counts.empty) == (4, 3, 1, 1)
    assert data.lengths[:2].tolist() == [length, length]
    assert data.rows.tolist() == [1, 2, 4]
    assert data.counts.cut_tokens == 1
    header = 4  # shorter than any question: the cut takes all that is trained
    with pytest.raises(RefusedInput, match=r"0 of 4 .* 1 dropped .*; 3 dropped .*after truncation"):
        build_cache(rows, spec(special_file, seq_length=header), tmp_path)


def test_length_rule_of_pairs(special_file: Path, tmp_path: Path) -> None:
    """A pair with one side too long is dropped whole; so is one with an empty side."""
    rows = [pair("well", "well " * 60), pair("", "well"), pair("well", "there")]
    one = spec(special_file, "preference", seq_length=40)
    data = build_cache(write_rows(tmp_path / "p.jsonl", rows), one, tmp_path)
    assert (data.counts.kept, data.counts.too_long, data.counts.empty) == (1, 1, 1)
    assert data.pairs
    chosen, rejected = data.sample(0)
    assert [chosen.ids.size, rejected.ids.size] == data.lengths[0].tolist()
    library = Encoder(one).library
    assert [library.decode(s.ids[s.mask].tolist()) for s in (chosen, rejected)] == ["well", "there"]


def test_made_once(special_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found again by content, under any name of the tokenizer; anything that changes ids makes another."""
    file = write_rows(tmp_path / "a.jsonl", [chat(n) for n in range(3)])
    first = build_cache(file, spec(special_file), tmp_path)
    copy = tmp_path / "copy.json"
    copy.write_bytes(special_file.read_bytes())
    with monkeypatch.context() as patched:
        patched.setattr(module, "_encode_part", lambda job: pytest.fail("tokenised again"))
        assert build_cache(file, spec(copy), tmp_path).folder == first.folder
    others = [replace(spec(special_file), seq_length=9), replace(spec(special_file), kind="prompt_response")]
    assert len({module._digest(file, s) for s in (spec(special_file), *others)}) == 3


def test_a_killed_build_goes_on(special_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_rows(tmp_path / "a.jsonl", [chat(n) for n in range(20)])
    real, done = module._encode_part, []

    def dying(job: Any) -> Any:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(job)
        return real(job)

    with monkeypatch.context() as patched:
        patched.setattr(module, "_encode_part", dying)
        with pytest.raises(KeyboardInterrupt):
            build_cache(file, spec(special_file), tmp_path / "c", processes=1, part_bytes=500)
    assert len(list((tmp_path / "c").glob("*.parts/*.npz"))) == 3
    for job in done:
        before = job.target.stat().st_mtime_ns
        real(job)
        assert job.target.stat().st_mtime_ns == before, "a finished part is not made again"
    data = build_cache(file, spec(special_file), tmp_path / "c", part_bytes=500)
    whole = build_cache(file, spec(special_file), tmp_path / "d")
    assert np.array_equal(data.ids, whole.ids)
    assert np.array_equal(data.mask, whole.mask)
    assert data.rows.tolist() == list(range(1, 21))


def test_bad_rows_are_named(special_file: Path, tmp_path: Path) -> None:
    rows: list[object] = [chat(n) for n in range(30)]
    rows[7], rows[22] = {"conversations": 3}, ["no object"]
    with pytest.raises(RefusedInput) as refused:
        build_cache(write_rows(tmp_path / "a.jsonl", rows), spec(special_file), tmp_path / "c", part_bytes=400)
    assert [f.where for f in refused.value.faults] == [f"{tmp_path}/a.jsonl:8", f"{tmp_path}/a.jsonl:23"]
    assert not list((tmp_path / "c").glob("*/cache.json"))


def test_damage_is_refused(special_file: Path, tmp_path: Path) -> None:
    data = build_cache(write_rows(tmp_path / "a.jsonl", [chat(1)]), spec(special_file), tmp_path)
    ids = data.folder / "ids.bin"
    ids.write_bytes(ids.read_bytes()[:-2])
    with pytest.raises(RefusedInput, match="damaged"):
        open_cache(data.folder)
    with pytest.raises(RefusedInput, match="not a complete cache"):
        open_cache(tmp_path)
    with pytest.raises(RefusedInput, match="cannot read"):
        build_cache(tmp_path / "none.jsonl", spec(special_file), tmp_path)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(EnvironmentFault, match="cannot write"):
        build_cache(write_rows(tmp_path / "b.jsonl", [chat(2)]), spec(special_file), blocked)
