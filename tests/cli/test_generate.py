"""``colosseum generate``: what it refuses, in one sentence and before a model is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colosseum.checkpoint.hf.importing import import_hf
from tests.checkpoint.hf import models

Cli = Callable[..., Any]
USER = {"role": "user", "content": "w20"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    import_hf(models.write(tmp_path / "in", "nemotron"), tmp_path / "ckpt")
    return tmp_path / "ckpt"


def test_refusals(checkpoint: Path, cli: Cli, tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    for words, rows, said in (
        (["nowhere", "--prompts", "p.jsonl"], [], "neither a path nor the name of a run"),
        (["ckpt"], [], "give --prompts FILE, or run it in a terminal to chat"),
        (["ckpt", "--out", "x.jsonl"], [], "--out needs --prompts FILE"),
        (["ckpt", "--prompts", "p.jsonl", "--out", "p.jsonl"], [], "already exists"),
        (["ckpt", "--prompts", "absent.jsonl"], [], "cannot read absent.jsonl"),
        (["ckpt", "--prompts", "p.jsonl"], [], "p.jsonl has no rows"),
        (["ckpt", "--prompts", "p.jsonl"], [{"prompt": "w20"}, {"prompt": 3}], "row 2: prompt must be"),
        (["ckpt", "--prompts", "p.jsonl"], [{"messages": [USER]}], "row 1: the checkpoint was not trained on chats"),
        (["ckpt", "--prompts", "p.jsonl", "--chat"], [{"prompt": "w20"}], "not trained on chats"),
        (["ckpt", "--prompts", "p.jsonl"], [{"prompt": "w20 " * 2000}], "row 1: the prompt has 2,000 tokens"),
        (["ckpt", "--prompts", "p.jsonl", "--top-p", "2"], [], "--top-p"),
        (["ckpt", "--prompts", "p.jsonl", "--max-tokens", "0"], [], "--max-tokens"),
    ):
        prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = cli("generate", *words)
        assert (done.code, done.out) == (2, ""), words
        assert said in done.said, words
        assert "loading" not in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt", "in", "p.jsonl"]


def test_no_tokenizer(checkpoint: Path, cli: Cli, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "in" / name).unlink()
    assert cli("checkpoint", "import", "hf", "in", "bare").code == 0
    (tmp_path / "p.jsonl").write_text('{"prompt": "w20"}\n')
    done = cli("generate", "bare", "--prompts", "p.jsonl")
    assert done.code == 2
    assert "the tokenizer.json of" in done.said
