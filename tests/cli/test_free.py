"""``plan --free`` asks nothing of the recipe's own layout; stages and vocabulary are shown."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli

NAME = "colosseum-355b/cpt-4k-bf16"


@pytest.mark.parametrize("words", [["resources.gpus=1"], ["resources.gpus=2048"], ["--gpus", "2048"]])
def test_a_count_that_the_recipes_own_layout_does_not_divide(cli: Cli, words: list[str]) -> None:
    assert cli("plan", NAME, "--cluster", "dgx-h100", *words).code == 2 or words[0] == "--gpus"
    done = cli("plan", NAME, "--cluster", "dgx-h100", "--free", *words, "--json")
    assert done.code == 0, done.said
    layout = json.loads(done.out)["layout"]
    size = layout["tp"] * layout["pp"] * layout["cp"] * layout["dp"]
    assert size == (1 if words == ["resources.gpus=1"] else 2048)


def test_other_faults_stay_faults(cli: Cli) -> None:
    done = cli("plan", NAME, "--free", "resources.gpus=1", "train.stepz=3")
    assert done.code == 2 and "train.stepz" in done.said
    done = cli("plan", NAME, "--free", "resources.gpus=2048", "optimizer.min_lr=5")
    assert done.code == 2 and "optimizer.min_lr" in done.said


@pytest.mark.parametrize(("layers", "pp", "each"), [(126, 16, 8), (30, 4, 8)])
def test_counting_embedding_and_loss_is_offered_where_it_evens_the_stages(
    cli: Cli, layers: int, pp: int, each: int
) -> None:
    words = [f"model.num_layers={layers}", f"parallelism.pp={pp}", f"resources.gpus={8 * pp}", "batch.gbs=64"]
    done = cli("plan", "generic", "--cluster", "dgx-h100", *words)
    assert done.code == 2
    assert f"the stages are even: {layers + 2} = {pp} x {each}" in " ".join(done.said.split())


def test_layers_by_stage_and_padded_rows_are_shown(cli: Cli) -> None:
    words = ["model.num_layers=30", "model.vocab_size=32001", "parallelism.pp=4", "resources.gpus=32"]
    words += [f"parallelism.account_for_{end}_in_pipeline_split=true" for end in ("embedding", "loss")]
    out = cli("plan", "generic", "--cluster", "dgx-h100", "batch.gbs=64", "parallelism.tp=1", *words).out
    rows = {line.split()[0]: line.split(maxsplit=1)[1].strip() for line in out.splitlines() if len(line.split()) > 1}
    assert rows["stages"] == "7, 2 x 8, 7 layers"
    assert rows["vocabulary"] == "32,128 rows, 127 of them padding"
