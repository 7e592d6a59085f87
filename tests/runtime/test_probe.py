"""The data probe decodes what training reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from colosseum.recipe.schema import Recipe
from colosseum.runtime.data import build, identities
from colosseum.runtime.probe import probe
from tests.runtime import tiny


def test_ids_masks_and_shares(data: Path, tmp_path: Path) -> None:
    plain = tiny.recipe(data).as_data()
    plain["data"]["eod_mask_loss"] = True
    recipe = Recipe.from_data(plain)
    samples = build(recipe, "train", 400, tmp_path / "cache", identities(recipe))
    found = probe(recipe, samples, 16)
    assert [row["sample"] for row in found["samples"]] == [16, 17, 18]
    for row in found["samples"]:
        sample = samples[row["sample"]]
        ids = sample["tokens"].tolist()
        assert row["text"].startswith(" ".join(map(str, ids))[:40])
        assert row["tokens"] == 64
        assert row["masked"] == ids.count(tiny.VOCAB - 1), "the loss does not count what follows a document's end"
    assert found["shares"][str(data / "a")] == pytest.approx(0.7, abs=0.02)
    assert sum(found["shares"].values()) == pytest.approx(1)
