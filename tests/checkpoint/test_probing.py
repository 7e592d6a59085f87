"""Loss by position: what a model of known weights must lose, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from colosseum.checkpoint.hf.importing import import_hf
from colosseum.checkpoint.probing import loss_by_position, sequences_of
from colosseum.cli.main import main
from colosseum.data.indexed import write_dataset
from colosseum.errors import RefusedInput
from tests.checkpoint.hf import models


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``data``, ``plain`` (the tiny Llama) and ``even``, whose output is 0: every token is as likely as any other."""
    root = tmp_path_factory.mktemp("probe")
    with write_dataset(root / "data", models.VOCAB) as writer:
        writer.add_document(list(models.TOKENS))
        writer.add_document([7] * 20)
    models.write(root / "in", "llama3", shards=1)
    import_hf(root / "in", root / "plain")
    tensors = {**models.tensors("llama3"), "lm_head.weight": np.zeros((models.VOCAB, 64), np.float32)}
    save_file(tensors, root / "in" / "model.safetensors", metadata={"format": "pt"})
    import_hf(root / "in", root / "even")
    return root


def test_where_all_tokens_are_alike_each_costs_the_logarithm_of_their_number(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["checkpoint", "probe", str(root / "even"), str(root / "plain"), "--data", str(root / "data")]
    assert main([*words, "--length", "20", "--sequences", "2", "--bands", "3", "--json"]) == 0
    losses = json.loads(capsys.readouterr().out)["losses"]
    even, plain = losses[str(root / "even")], losses[str(root / "plain")]
    assert [(band["first"], band["last"]) for band in even] == [(1, 7), (8, 13), (14, 20)]
    assert all(band["loss"] == pytest.approx(math.log(models.VOCAB), abs=1e-6) for band in even)
    assert plain != even
    assert main([*words, "--length", "20"]) == 0
    assert "position" in capsys.readouterr().out


def test_the_loss_is_that_of_transformers(root: Path) -> None:
    """Of the position whose logits are kept (figures/llama3.npz)."""
    shown = np.load(Path(__file__).parent / "hf" / "figures" / "llama3.npz")["logits"][1].astype(np.float64)
    at, target = models.SHOWN[1], models.TOKENS[models.SHOWN[1] + 1]
    expected = np.log(np.exp(shown).sum()) - shown[target]
    found = loss_by_position(root / "plain", [list(models.TOKENS)], len(models.TOKENS) - 1)
    assert found[at].first == found[at].last == at + 1
    assert found[at].loss == pytest.approx(expected, abs=1e-5)


def test_too_few_and_strange_tokens_are_refused(root: Path) -> None:
    with pytest.raises(RefusedInput, match="has 60 tokens"):
        sequences_of(root / "data", 60, 1)
    with pytest.raises(RefusedInput, match="hold token 509"):
        loss_by_position(root / "plain", [[1, 509]], 1)
