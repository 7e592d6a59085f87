"""From one recipe the same model: what NeMo is told, and megatron-core's configuration as our runtime builds it.

The configuration is built as on a GPU: presence of CUDA and of Transformer Engine is feigned, nothing is computed.
"""

from __future__ import annotations

from typing import Any

import pytest

from colosseum.engines.megatron_lm.engine import arguments
from colosseum.engines.nemo1.config import config
from colosseum.engines.nemo2.config import launch_tree
from tests.engines.conftest import Resolved

RECIPES = ("generic", "debug-8b/cpt-fp8", "colosseum-355b/baseline-96", "colosseum-355b/cpt-fp8")
NEMO1 = ("tokenizer.kind=tokenizer_json", "tokenizer.path=/t/tokenizer.json")


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch, resolved: Resolved) -> Any:
    """``ours(name)``: the runtime's TransformerConfig of a recipe."""
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer import transformer_config

    from colosseum.runtime import device, model

    monkeypatch.setattr(device, "is_cuda", lambda: True)
    monkeypatch.setattr(rope_utils, "fused_apply_rotary_pos_emb", lambda *_: None)
    monkeypatch.setattr(rope_utils, "fused_apply_rotary_pos_emb_thd", lambda *_: None)
    monkeypatch.setattr(transformer_config, "is_te_min_version", lambda *_, **__: True)
    return lambda name: model.transformer_config(resolved(name))


@pytest.mark.parametrize("name", RECIPES)
def test_nemo_2_is_told_the_same_model(name: str, ours: Any, resolved: Resolved) -> None:
    built, told = ours(name), launch_tree(resolved(name))["with"]["model"]["with"]["config"]["with"]
    both = {key: value for key, value in told.items() if hasattr(built, key) and key != "activation_func"}
    assert len(both) >= 20
    assert {key: getattr(built, key) for key in both} == both
    assert told["activation_func"]["name"].endswith(f":{built.activation_func.__name__}")


@pytest.mark.parametrize("name", RECIPES)
def test_nemo_1_is_told_the_same_model(name: str, ours: Any, resolved: Resolved) -> None:
    built, told = ours(name), config(resolved(name, *NEMO1))["model"]
    both = {key: value for key, value in told.items() if hasattr(built, key) and key not in ("normalization", "fp8")}
    assert len(both) >= 20
    same = {key: getattr(built, key) for key in both}
    assert same == both


@pytest.mark.parametrize("name", RECIPES)
def test_megatron_lm_fuses_the_same_activation(name: str, ours: Any, resolved: Resolved) -> None:
    """Its rule (arguments.py of 0.16.1 and 0.19.0): --swiglu has a switch of its own, all others --bias-gelu-fusion."""
    words = set(arguments(resolved(name)))
    switch = "--no-bias-swiglu-fusion" if "--swiglu" in words else "--no-bias-gelu-fusion"
    assert ours(name).bias_activation_fusion == (switch not in words)
