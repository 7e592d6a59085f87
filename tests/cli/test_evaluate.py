"""``colosseum evaluate`` and ``select``: what they refuse, before the harness or a model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colosseum.checkpoint.hf.importing import import_hf
from tests.evaluation import made

Cli = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Hugging Face folder without a chat template, and a checkpoint of it."""
    import_hf(made.write_model(tmp_path / "hf", template=None), tmp_path / "ckpt")
    (tmp_path / "bad.yaml").write_text("name: bad\n")
    made.write_own(tmp_path / "own")
    return tmp_path


def test_refusals(folder: Path, cli: Cli) -> None:
    for words, said in (
        (["ckpt"], "--tasks"),
        (["ckpt", "--tasks", ","], "give --tasks NAME"),
        (["nowhere", "--tasks", "mmlu"], "neither a path nor the name of a run"),
        (["own", "--tasks", "mmlu"], "neither a complete checkpoint nor a Hugging Face folder"),
        (["ckpt", "--tasks", "mmlu", "--backend", "vllm"], "colosseum checkpoint export hf"),
        (["hf", "--tasks", "mmlu", "--backend", "runtime"], "colosseum checkpoint export hf"),
        (["hf", "--tasks", "mmlu", "--chat"], "it was not trained on chats"),
        (["ckpt", "--tasks", "mmlu", "--chat"], "it was not trained on chats"),
        (["ckpt", "--tasks", "mmlu", "--data", "absent"], "is no folder"),
        (["ckpt", "--tasks", "absent.yaml"], "no such file"),
        (["ckpt", "--tasks", "bad.yaml"], "licence"),
        (["ckpt", "--tasks", "own/exact.yaml,own/exact.yaml"], "own tasks need different names"),
        (["ckpt", "--tasks", "mmlu", "--few-shot", "-1"], "--few-shot"),
    ):
        done = cli("evaluate", *words)
        assert (done.code, done.out) == (2, ""), (words, done.err)
        assert said in done.said, words
        assert "Traceback" not in done.err
    assert not (folder / "evaluations").exists()


def test_select_refuses(folder: Path, cli: Cli) -> None:
    made.write_run(folder / "runs", "empty", {})
    for words, said in (
        (["absent", "--by", "mmlu"], "no such run"),
        (["empty", "--by", "mmlu"], "empty has no complete checkpoint"),
        (["empty"], "--by"),
    ):
        done = cli("select", *words)
        assert (done.code, done.out) == (2, ""), words
        assert said in done.said, words
    done = cli("generate", "empty@selected", "--prompts", "x")
    assert done.code == 2
    assert "no checkpoint of empty was selected" in done.said
