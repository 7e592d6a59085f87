"""Published measurements (published.csv, sources in README.md) and what the planner says of the same runs.

A row becomes overrides on ``recipes/generic.yaml``, as a user would type them; ``settings`` holds what its source says
beyond the columns, and what follows from that source's software where the default would be wrong.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from colosseum.planning import cost
from colosseum.planning.constants import Calibration, Constants, calibration_for
from colosseum.planning.job import Job, Layouts
from colosseum.planning.layout import enumerate_layouts
from colosseum.planning.memory import backward_bytes, peak, update_bytes
from colosseum.recipe.load import load
from colosseum.recipe.schema import Recipe
from colosseum.units import GIB

FILE = Path(__file__).with_name("published.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published run."""

    id: str
    set: str
    """``fit``: constants are fitted to it; ``held``: an H100 release never fitted; the others: README.md."""
    family: str
    overrides: tuple[str, ...]
    hardware: str
    step_time_s: float | None
    peak_gib: float | None

    @property
    def source(self) -> str:
        return self.id.partition("#")[0]


@cache
def rows() -> tuple[Row, ...]:
    """Every row of the file."""
    with FILE.open(newline="") as stream:
        return tuple(_row(data) for data in csv.DictReader(stream))


def overrides_of(data: dict[str, str]) -> tuple[str, ...]:
    """What a row of a file says, as overrides on the generic recipe."""
    gated, learned = data["gated"] == "1", data["positions"] == "learned"
    activation = "silu" if gated else ("squared_relu" if "emotron" in data["model"] else "gelu")
    words = {
        "hardware": data["hardware"],
        "precision": data["precision"],
        "model.num_layers": data["layers"],
        "model.hidden_size": data["hidden"],
        "model.num_attention_heads": data["heads"],
        "model.num_query_groups": data["groups"],
        "model.kv_channels": "null",
        "model.ffn_hidden_size": data["ffn"],
        "model.gated_linear_unit": str(gated).lower(),
        "model.activation_func": activation,
        "model.normalization": "RMSNorm" if gated else "LayerNorm",
        "model.add_bias_linear": str(learned).lower(),
        "model.vocab_size": data["vocab"],
        "model.tied_embeddings": str(data["tied"] == "1").lower(),
        "model.position_embedding_type": "learned_absolute" if learned else "rope",
        "parallelism.tp": data["tp"],
        "parallelism.pp": data["pp"],
        "parallelism.vpp": data["vpp"],
        "parallelism.cp": data["cp"],
        "batch.gbs": data["gbs"],
        "batch.mbs": data["mbs"],
        "batch.seq_length": data["seq_length"],
        "resources.gpus": data["gpus"],
        "precision.bf16_layers.first": "0",
        "precision.bf16_layers.last": "0",
        "precision.grad_reduce_dtype": "bf16",
        # NVIDIA's FP8 recipes keep the weights in FP8 (fp8_params: true in DGX Cloud's gpt3_175b_hydra.yaml).
        "precision.fp8_params": str(data["precision"].startswith("fp8")).lower(),
    }
    settings = dict(word.split("=", 1) for word in data["settings"].split())
    return tuple(f"{k}={v}" for k, v in (words | settings).items())


def _row(data: dict[str, str]) -> Row:
    return Row(
        id=data["id"],
        set=data["set"],
        family=data["model"].removesuffix("(seqsel)"),
        overrides=overrides_of(data),
        hardware=data["hardware"],
        step_time_s=float(data["step_time_s"]) if data["step_time_s"] else None,
        peak_gib=float(data["peak_gib"]) if data["peak_gib"] else None,
    )


@cache
def recipe_of(row: Row) -> Recipe:
    """The recipe of a row."""
    return load("generic", row.overrides, cluster="local").recipe


@cache
def problem(row: Row) -> tuple[Job, Layouts]:
    """What the cost model is asked for a row; its recipe leaves one layout."""
    recipe = recipe_of(row)
    layouts = enumerate_layouts(recipe)
    assert len(layouts) == 1, row.id
    return Job.of(recipe), layouts


def step_time(row: Row, constants: Constants) -> float:
    """Predicted seconds a step."""
    return float(cost.step_time(*problem(row), constants).total_s[0])


def peak_gib(row: Row, constants: Constants) -> float:
    """Predicted GiB that PyTorch allocates on the fullest rank."""
    return float(peak(*problem(row), constants)[0][0]) / GIB


def first_step_gib(row: Row, constants: Constants) -> float:
    """Predicted GiB at most in the first step, whose passes come before Adam has moments: what some logs print."""
    job, lay = problem(row)
    most = 0.0
    for stage in range(int(lay.pp[0])):
        backward, update = (of(job, lay, constants, float(stage)) for of in (backward_bytes, update_bytes))
        moments = backward.optimizer * 2.0 * job.moments_bytes / (4.0 + 2.0 * job.moments_bytes)
        most = max(most, float((backward.allocated - moments)[0]), float(update.allocated[0]))
    return most / GIB


def shipped(row: Row) -> Calibration:
    """The calibration a plan of the row uses."""
    return calibration_for(row.hardware)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Relative errors of some rows."""

    rows: tuple[Row, ...]
    errors: tuple[float, ...]

    @property
    def mape(self) -> float:
        return float(np.mean(np.abs(self.errors)))

    @property
    def bias(self) -> float:
        return float(np.mean(self.errors))

    @property
    def worst(self) -> tuple[Row, float]:
        i = int(np.argmax(np.abs(self.errors)))
        return self.rows[i], self.errors[i]


def score_time(some: tuple[Row, ...], constants: Callable[[Row], Constants]) -> Score:
    """Of the rows with a step time."""
    timed = tuple(r for r in some if r.step_time_s is not None)
    return Score(rows=timed, errors=tuple(step_time(r, constants(r)) / (r.step_time_s or 1.0) - 1.0 for r in timed))


def score_memory(
    some: tuple[Row, ...], constants: Callable[[Row], Constants], of: Callable[[Row, Constants], float] = peak_gib
) -> Score:
    """Of the rows with a memory peak: of any step, or what ``of`` says."""
    held = tuple(r for r in some if r.peak_gib is not None)
    return Score(rows=held, errors=tuple(of(r, constants(r)) / (r.peak_gib or 1.0) - 1.0 for r in held))
