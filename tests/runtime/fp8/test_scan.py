"""The scan of a checkpoint whose weights and first activations are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from colosseum.checkpoint.hf.importing import import_hf
from colosseum.cli.main import main
from colosseum.data.indexed import write_dataset
from tests.checkpoint.hf import models


def exponents(array: np.ndarray) -> dict[int, int]:
    found = np.floor(np.log2(np.abs(array[array != 0]).astype(np.float64))).astype(int)
    return dict(zip(*(x.tolist() for x in np.unique(found, return_counts=True)), strict=True))


def test_what_is_seen_is_what_is_multiplied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights of every layer, and the normalised embeddings that the first layer multiplies, computed by NumPy."""
    length = 19
    with write_dataset(tmp_path / "data", models.VOCAB) as writer:
        writer.add_document(list(models.TOKENS))
    models.write(tmp_path / "in", "llama3")
    import_hf(tmp_path / "in", tmp_path / "ck")
    words = ["fp8", "scan", str(tmp_path / "ck"), "--data", str(tmp_path / "data"), "--length", str(length)]
    assert main([*words, "--sequences", "2", "--out", str(tmp_path / "scan"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "scan.json").read_text()) == found
    assert (tmp_path / "scan.png").read_bytes().startswith(b"\x89PNG")

    tensors = {(t["layer"], t["module"], t["kind"]): t for t in found["tensors"]}
    assert len(tensors) == 3 * 4 * 3
    truth = models.tensors("llama3")

    def counted(row: dict[str, object]) -> dict[int, int]:
        return {found["lowest_exponent"] + i: n for i, n in enumerate(row["exponents"]) if n}  # type: ignore[arg-type]

    for layer in range(3):
        attention = f"model.layers.{layer}.self_attn"
        qkv = np.concatenate([truth[f"{attention}.{part}_proj.weight"] for part in "qkv"])
        seen = tensors[layer + 1, "linear_qkv", "weight"]
        assert seen["amax"] == pytest.approx(np.abs(qkv).max(), rel=1e-6)
        assert counted(seen) == exponents(qkv)

    embedded = truth["model.embed_tokens.weight"][list(models.TOKENS[: 2 * length])].astype(np.float64)
    normalised = embedded / np.sqrt((embedded**2).mean(1, keepdims=True) + 1e-5)
    normalised = normalised * truth["model.layers.0.input_layernorm.weight"]
    seen = tensors[1, "linear_qkv", "input"]
    assert seen["amax"] == pytest.approx(np.abs(normalised).max(), rel=1e-5)
    assert sum(seen["exponents"]) == normalised.size
    assert sum(tensors[3, "linear_fc1", "gradient"]["exponents"]) <= 2 * length * 2 * 112

    assert main([*words, "--out", str(tmp_path / "scan")]) == 2  # nothing is written over
    assert main(words) == 2  # 4 sequences are more tokens than there are
    assert "need" in capsys.readouterr().err
