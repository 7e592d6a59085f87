"""Fitting: constants come back from times made with them, an H200's measurements predict its steps."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colosseum.errors import RefusedInput
from colosseum.planning.calibration import MEASUREMENTS_SCHEMA, Fitted, fit_measurements, fit_run, measurements
from colosseum.planning.constants import calibration_for
from colosseum.planning.cost import attention_time, gemm_time
from colosseum.planning.resolve import resolve
from colosseum.recipe.load import load
from colosseum.recipe.schema import Recipe

BASE = calibration_for("h100-sxm")
H200 = load("generic", ["hardware=h200-sxm"]).recipe.hardware
MEASURED = json.loads((Path(__file__).parents[1] / "validation" / "h200_measurements.json").read_text())
SHAPES = [(4096, 4096, 512), (8192, 8192, 8192), (4096, 9216, 2048), (2048, 4096, 16384), (8192, 4096, 1024)]


def measured(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"schema": MEASUREMENTS_SCHEMA, "device": "x", "torch": "y", "time_unix_s": 1.8e9, "rows": rows}


def fit(document: dict[str, Any]) -> Fitted:
    return fit_measurements(measurements(document), H200, BASE, name="x", source="y")


@settings(max_examples=6, deadline=None)
@given(efficiency=st.floats(0.4, 0.95), half_k=st.floats(20, 1500))
def test_gemm_constants_come_back(efficiency: float, half_k: float) -> None:
    true = replace(BASE.constants, gemm_efficiency_bf16=efficiency, gemm_half_k=half_k)
    m, n, k = (np.array(x, dtype=float) for x in zip(*SHAPES, strict=True))
    times = gemm_time(m, n, k, true, H200.peak_flops.bf16, H200.sms, H200.memory_bytes_per_s)
    rows = [
        {"kind": "gemm", "dtype": "bf16", "m": a, "n": b, "k": c, "time_s": float(t)}
        for (a, b, c), t in zip(SHAPES, times, strict=True)
    ]
    fitted = fit(measured(rows)).calibration.constants
    again = gemm_time(m, n, k, fitted, H200.peak_flops.bf16, H200.sms, H200.memory_bytes_per_s)
    assert np.median(np.abs(again / times - 1)) < 0.02
    assert fitted.attention_half_seq == BASE.constants.attention_half_seq, "what was not measured stays"


def test_attention_constants_come_back() -> None:
    true = replace(
        BASE.constants,
        attention_efficiency_forward=0.5,
        attention_efficiency_backward=0.4,
        attention_half_seq=600.0,
        attention_head_dim_factor=0.9,
        attention_head_dim_factor_backward=0.6,
    )
    rows = []
    for heads, dim, seq in ((16, 128, 1024), (16, 128, 4096), (16, 64, 8192), (12, 192, 4096)):
        f, b = attention_time(2.0, seq, float(seq), heads, dim, true, H200.peak_flops.bf16)
        row = {"kind": "attention", "heads": heads, "head_dim": dim, "seq_length": seq, "sequences": 2}
        rows.append({**row, "forward_s": float(f), "backward_s": float(b)})
    fitted = fit(measured(rows))
    for name, value in asdict(true).items():
        tolerance = 0.05 if name == "attention_half_seq" else 0.02
        assert getattr(fitted.calibration.constants, name) == pytest.approx(value, rel=tolerance), name


def test_the_shipped_h200_file_is_the_fit_of_its_measurements() -> None:
    shipped = calibration_for("h200-sxm")
    assert shipped.name == "h200-sxm"
    fitted = fit(MEASURED)
    assert all(error < 0.04 for error in fitted.errors.values()), fitted.errors
    for name, value in asdict(fitted.calibration.constants).items():
        if value != getattr(BASE.constants, name):
            assert getattr(shipped.constants, name) == pytest.approx(value, rel=0.02), name


STEPS = [  # layers, hidden, heads, ffn, mbs, fp8, measured step s (median from step 6 on), measured peak GiB
    (24, 2048, 16, 8192, 4, "none", 0.526, 45.8),
    (24, 2048, 16, 8192, 4, "none", 0.514, 45.8),  # the same in another session, as the next pair
    (24, 2048, 16, 8192, 4, "delayed", 0.411, 44.1),
    (24, 2048, 16, 8192, 4, "delayed", 0.4385, 44.1),
    (24, 4096, 32, 16384, 2, "none", 1.613, 99.0),
    (24, 4096, 32, 16384, 2, "delayed", 1.124, 103.1),
]


@pytest.mark.parametrize(("layers", "hidden", "heads", "ffn", "mbs", "fp8", "step_s", "peak_gib"), STEPS)
def test_kernels_alone_predict_the_whole_step(
    layers: int, hidden: int, heads: int, ffn: int, mbs: int, fp8: str, step_s: float, peak_gib: float
) -> None:
    words = [f"model.num_layers={layers}", f"model.hidden_size={hidden}", f"model.num_attention_heads={heads}"]
    words += ["model.num_query_groups=8", "model.kv_channels=128", f"model.ffn_hidden_size={ffn}"]
    words += ["model.vocab_size=32768", "model.activation_func=squared_relu", "model.gated_linear_unit=false"]
    words += ["model.normalization=LayerNorm", f"batch.mbs={mbs}", "batch.gbs=8"]
    words += [f"precision.fp8={fp8}", "precision.fp8_params=false"]
    words += ["hardware=h200-sxm", "precision.grad_reduce_dtype=fp32", "resources.gpus=1", "resources.gpus_per_node=1"]
    plan = resolve(load("generic", words).recipe)
    assert plan.calibration is not None
    assert plan.calibration.name == "h200-sxm"
    assert plan.step_time_s == pytest.approx(step_s, rel=0.1)  # two sessions of one row are 7% apart
    assert plan.memory is not None
    assert plan.memory.peak_bytes / 2**30 == pytest.approx(peak_gib, rel=0.03)


def run_rows(step_s: float, peak: int, count: int = 30) -> list[dict[str, Any]]:
    slow = [step_s * 5] * 5
    times = slow + [step_s] * (count - 5)
    return [{"step": i, "step_time_s": t, "memory_peak_bytes": [peak, peak // 2]} for i, t in enumerate(times, 1)]


def a_plan(calibration: Any) -> Any:
    recipe: Recipe = load("generic").recipe
    return resolve(recipe, calibration)


def test_a_site_twice_as_slow_has_factor_two_and_its_plans_say_so() -> None:
    plan = a_plan(BASE)
    rows = run_rows(2 * plan.step_time_s, int(plan.memory.peak_bytes) + 10**9)
    fitted = fit_run(rows, plan, BASE, name="site", source="y").calibration
    assert fitted.constants.site_factor == pytest.approx(2 * BASE.constants.site_factor, rel=1e-3)
    assert fitted.constants.memory_offset_bytes == pytest.approx(10**9 + BASE.constants.memory_offset_bytes, abs=2)
    again = a_plan(fitted)
    assert again.step_time_s == pytest.approx(2 * plan.step_time_s, rel=1e-3)
    assert again.memory.peak_bytes == pytest.approx(plan.memory.peak_bytes + 10**9, rel=1e-6)
    # Fitted again with itself as the base, nothing changes.
    twice = fit_run(rows, again, fitted, name="site", source="y").calibration
    assert twice.constants.site_factor == pytest.approx(fitted.constants.site_factor, rel=1e-3)
    assert median(row["step_time_s"] for row in rows) == 2 * plan.step_time_s


def test_a_real_run_is_as_its_plan_said() -> None:
    """30 steps of 12 layers of Llama 3 8B in BF16 on one H200 (tests/validation/README.md): nothing to correct."""
    words = ["hardware=h200-sxm", "model.num_layers=12", "batch.seq_length=8192", "batch.gbs=4"]
    recipe = load("generic", [*words, "resources.gpus=1", "resources.gpus_per_node=1"], cluster="local").recipe
    file = Path(__file__).parents[1] / "validation" / "h200_run_metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    base = calibration_for("h200-sxm")
    fitted = fit_run(rows, resolve(recipe), base, name="site", source="y").calibration.constants
    assert fitted.site_factor == pytest.approx(1.0, rel=0.03)
    assert abs(fitted.memory_offset_bytes) < 0.01 * max(row["memory_peak_bytes"][0] for row in rows)


def test_what_cannot_be_fitted_is_refused() -> None:
    plan = a_plan(BASE)
    with pytest.raises(RefusedInput, match="at least 15 steps"):
        fit_run(run_rows(1.0, 10**9, count=14), plan, BASE, name="x", source="y")
    with pytest.raises(RefusedInput, match="has no predicted step time"):
        fit_run(run_rows(1.0, 10**9), plan.model_copy(update={"step_time_s": None}), BASE, name="x", source="y")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "schema"),
        ({"rows": []}, "schema"),
        (measured([]) | {"rows": {}}, "rows"),
        (measured([]) | {"time_unix_s": None}, "time_unix_s"),
        (measured([{"bytes": 1}]), "kind"),
        (measured([{"kind": "copy", "bytes": 1}]), "time_s"),
        (measured([{"kind": "copy", "bytes": 1, "time_s": float("nan")}]), "time_s"),
        (measured([{"kind": "copy", "bytes": 1, "time_s": -1.0}]), "too busy"),
    ],
)
def test_a_file_that_is_no_measurement_is_refused(document: Any, said: str) -> None:
    with pytest.raises(RefusedInput, match=said):
        measurements(document)
