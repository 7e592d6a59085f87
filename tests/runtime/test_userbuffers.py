"""What Transformer Engine's userbuffers are registered with; the buffers themselves need several GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from colosseum.recipe.load import load
from colosseum.runtime import userbuffers
from colosseum.runtime.failures import ConfigFailure


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cpt-4k-bf16", [4096, 18432]),
        ("cpt-16k-expand", [16384 // 4, 18432]),  # CP4
    ],
)
def test_shape_is_what_one_rank_sees_of_a_micro_batch(name: str, shape: list[int]) -> None:
    assert userbuffers.shape(load(f"colosseum-355b/{name}").recipe) == shape


@pytest.mark.parametrize(
    ("words", "modes"),
    [
        ((), ["NONE"]),
        (("precision=fp8-delayed",), ["FP8"]),
        (("precision=fp8-tensorwise", "precision.bf16_layers.last=1"), ["FP8", "NONE"]),
    ],
)
def test_layers_kept_in_bf16_have_buffers_of_their_own(words: tuple[str, ...], modes: list[str]) -> None:
    assert userbuffers.quantization_modes(load("generic", list(words)).recipe) == modes


def test_a_profile_is_data(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    recipe = load("generic", [f"overlap.tp_comm_cfg={path}"]).recipe
    with pytest.raises(ConfigFailure, match="cannot be read"):
        userbuffers.profile(recipe)
    path.write_text("qkv_fprop: {method: ring_exchange, num_sm: 16}\n")
    assert userbuffers.profile(recipe) == {"qkv_fprop": {"method": "ring_exchange", "num_sm": 16}}
    for text in ("!!python/object/apply:os.system [touch x]", "[1, 2]", "qkv_fprop: 3"):
        path.write_text(text)
        with pytest.raises(ConfigFailure):
            userbuffers.profile(recipe)
