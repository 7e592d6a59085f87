"""Single layers measured on an H200 (h200_layers.csv, README.md): the bytes they keep, and what dropout costs them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from colosseum.planning.constants import calibration_for
from colosseum.planning.cost import layer_time
from colosseum.planning.job import Job, Layouts
from colosseum.planning.layout import enumerate_layouts
from colosseum.planning.memory import backward_bytes, chunk_input, layer_activations, update_bytes
from colosseum.recipe.load import load

CONSTANTS = calibration_for("h200-sxm").constants
with Path(__file__).with_name("h200_layers.csv").open(newline="") as stream:
    ROWS = {row["id"]: row for row in csv.DictReader(stream)}


def problem(row: dict[str, str], layers: int = 1) -> tuple[Job, Layouts]:
    """A model of some of the row's layers on one GPU."""
    recompute = {
        "none": ("none", "null", "null"),
        "mlp": ("selective", "null", "null"),
        "full": ("full", "uniform", "1"),
    }
    granularity, method, group = recompute[row["recompute"]]
    words = {
        "hardware": "h200-sxm",
        "model.num_layers": layers,
        "model.hidden_size": row["hidden"],
        "model.num_attention_heads": row["heads"],
        "model.num_query_groups": row["groups"],
        "model.kv_channels": row["head_dim"],
        "model.ffn_hidden_size": row["ffn"],
        "model.vocab_size": 32000,
        "model.activation_func": row["activation"],
        "model.gated_linear_unit": str(row["gated"] == "1").lower(),
        "model.normalization": row["normalization"],
        "model.add_bias_linear": str(row["bias"] == "1").lower(),
        "model.position_embedding_type": "learned_absolute" if row["positions"] == "learned" else "rope",
        "fusion.rope": str(row["positions"] == "rope").lower(),
        "model.hidden_dropout": row["dropout"],
        "model.attention_dropout": row["dropout"],
        "batch.mbs": row["mbs"],
        "batch.gbs": row["mbs"],
        "batch.seq_length": row["seq_length"],
        "precision.fp8": row["fp8"],
        "precision.fp8_params": str(row["fp8_params"] == "1").lower(),
        "recompute.granularity": granularity,
        "recompute.method": method,
        "recompute.num_layers": group,
        "recompute.modules": "[mlp]",
        "resources.gpus": 1,
        "resources.gpus_per_node": 1,
    }
    recipe = load("generic", [f"{k}={v}" for k, v in words.items()], cluster="local").recipe
    return Job.of(recipe), enumerate_layouts(recipe)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_bytes_a_layer_keeps(row: dict[str, str]) -> None:
    job, lay = problem(row)
    kept = chunk_input(job, lay) if row["recompute"] == "full" else layer_activations(job, lay)
    assert float(kept[0]) == pytest.approx(float(row["activation_bytes"]), rel=2e-3)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_bytes_the_optimizers_step_adds(row: dict[str, str]) -> None:
    def added(layers: int) -> float:
        job, lay = problem(row, layers)
        update, backward = update_bytes(job, lay, CONSTANTS, 0), backward_bytes(job, lay, CONSTANTS, 0)
        states = backward.weights + backward.gradients + backward.optimizer
        return float((update.allocated - states)[0])

    assert (added(6) - added(2)) / 4 == pytest.approx(float(row["update_bytes"]), rel=2e-3)


def test_what_dropout_costs() -> None:
    """The difference that dropout makes, forward and backward together, over four pairs of layers."""
    predicted, measured = [], []
    for name in ("gpt3-tp4-{}bf16-none", "gpt3-tp4-{}delayed-p-none", "gpt5b-{}bf16-none", "gpt5b-{}delayed-p-none"):
        times = []
        for kind in ("", "nodrop-"):
            layer = layer_time(*problem(ROWS[name.format(kind)]), CONSTANTS)
            row = ROWS[name.format(kind)]
            backward = layer.gemm_b + layer.attention_b + layer.memory_b
            times.append((float((layer.forward + backward)[0]), float(row["forward_s"]) + float(row["backward_s"])))
        predicted.append(times[0][0] - times[1][0])
        measured.append(times[0][1] - times[1][1])
    assert sum(predicted) == pytest.approx(sum(measured), rel=0.2)
