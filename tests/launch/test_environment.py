"""The environment variables of the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from colosseum.launch import environment
from colosseum.launch.runs.submit import prepare
from colosseum.recipe.load import load


@pytest.mark.parametrize(
    ("words", "margin"),
    [
        (["resources.gpus=1"], False),
        (["resources.gpus=2"], True),
        (["resources.gpus=2", "overlap.grad_reduce=false", "overlap.param_gather=false"], False),
        (["resources.gpus=2", "parallelism.cp=2"], True),
        (["resources.gpus=2", "parallelism.tp=2"], True),
        (["resources.gpus=2", "parallelism.tp=2", "overlap.tp_comm=false"], False),
        (["resources.gpus=2", "parallelism.pp=2"], False),
    ],
)
def test_layer_norms_leave_sms_only_where_communication_overlaps_compute(words: list[str], margin: bool) -> None:
    made = prepare(load("generic", words, cluster="dgx-h100").recipe, Path("/data"))
    named = {s.name for s in environment.engine_settings(made.recipe, made.plan)}
    both = {"NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_BWD_LAYERNORM_SM_MARGIN"}
    assert named & both == (both if margin else set())
