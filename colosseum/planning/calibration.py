"""Measurements of a device, or a real run's metrics -> Calibration. Pure.

What was not measured keeps its value of the calibration that the fit starts from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from colosseum.errors import Fault, RefusedInput
from colosseum.planning.constants import Calibration, Constants
from colosseum.planning.cost import attention_time, gemm_time
from colosseum.planning.flops import Array
from colosseum.planning.plan import Plan
from colosseum.recipe.cluster import Hardware

MEASUREMENTS_SCHEMA = "colosseum.measurements/1"
WARM_UP_STEPS = 5
"""Steps at the start of a run that compile, allocate and fill caches."""
MIN_STEPS = 10
Rows = Sequence[Mapping[str, Any]]
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k", "time_s"),
    "attention": ("sequences", "seq_length", "heads", "head_dim", "forward_s", "backward_s"),
    "copy": ("bytes", "time_s"),
    "norm": ("rows", "hidden", "forward_s", "backward_s"),
    "all_gather": ("ranks", "bytes", "time_s"),
    "reduce_scatter": ("ranks", "bytes", "time_s"),
}
"""Kind of row -> the figures it must have, all above zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A calibration and how well it gives back what was measured."""

    calibration: Calibration
    errors: Mapping[str, float]
    """Kind of measurement -> median relative error of the fitted formula."""
    rows: Rows = ()
    """The measurements; empty of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What ``runtime.measure`` wrote, checked."""

    device: str
    torch: str
    time_unix_s: float
    rows: Rows


def measurements(document: Any) -> Measurements:
    """A checked document of ``runtime.measure``; it may come from another machine.

    Raises:
        RefusedInput: the document is none of ours, a row lacks a figure, or a time is not above zero.
    """
    if not isinstance(document, Mapping) or document.get("schema") != MEASUREMENTS_SCHEMA:
        raise RefusedInput(f"a file of measurements must have schema: {MEASUREMENTS_SCHEMA}")
    rows = document.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise RefusedInput("a file of measurements must have rows, each a mapping")
    faults = [fault for i, row in enumerate(rows) for fault in _row_faults(f"rows[{i}]", row)]
    when = document.get("time_unix_s")
    if isinstance(when, bool) or not isinstance(when, int | float) or not 0 <= when < 1e11:
        faults.append(Fault(path="time_unix_s", value=when, rule="must be seconds since 1970"))
    if faults:
        raise RefusedInput(faults)
    device, torch = str(document.get("device", "")), str(document.get("torch", ""))
    return Measurements(device=device, torch=torch, time_unix_s=float(document["time_unix_s"]), rows=rows)


def _row_faults(path: str, row: Mapping[str, Any]) -> list[Fault]:
    kind = row.get("kind")
    if not isinstance(kind, str) or kind not in COLUMNS:
        return [Fault(path=f"{path}.kind", value=kind, rule="no such kind of measurement", nearest=tuple(COLUMNS))]
    faults = []
    for name in COLUMNS[kind]:
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            busy = ": the machine was too busy; measure again" if name.endswith("_s") else ""
            faults.append(Fault(path=f"{path}.{name}", value=value, rule=f"must be above zero{busy}"))
    return faults


def fit_measurements(found: Measurements, hardware: Hardware, base: Calibration, *, name: str, source: str) -> Fitted:
    """Constants from measured times; those of what was not measured are the base's."""
    rows = found.rows
    changes: dict[str, float] = {}
    errors: dict[str, float] = {}
    _fit_memory(rows, hardware, changes)
    constants = base.with_constants(**changes).constants
    _fit_gemms(rows, hardware, constants, changes, errors)
    _fit_attention(rows, hardware, constants, changes, errors)
    _fit_links(rows, hardware, changes)
    fitted = base.with_constants(**{key: float(f"{value:.4g}") for key, value in changes.items()})
    calibration = Calibration(name=name, hardware=hardware.name, source=source, constants=fitted.constants)
    return Fitted(calibration=calibration, errors=errors, rows=found.rows)


def _of(rows: Rows, kind: str, **where: Any) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["kind"] == kind and all(row.get(k) == v for k, v in where.items())]


def _column(rows: Rows, name: str) -> Array:
    return np.array([float(row[name]) for row in rows])


def _fit_memory(rows: Rows, hardware: Hardware, changes: dict[str, float]) -> None:
    if copies := _of(rows, "copy"):
        rate = median(row["bytes"] / row["time_s"] for row in copies)
        changes["memory_efficiency"] = rate / hardware.memory_bytes_per_s


def _fit_gemms(
    rows: Rows, hardware: Hardware, base: Constants, changes: dict[str, float], errors: dict[str, float]
) -> None:
    """Efficiency and half-K of each dtype: the pair with the smallest median relative error, by search on a grid.

    FP8 training runs forward GEMMs with fast accumulation and the two backward ones with split accumulation, so both
    are fitted as one.
    """
    for dtype, peak in (("bf16", hardware.peak_flops.bf16), ("fp8", hardware.peak_flops.fp8)):
        found = _of(rows, "gemm", dtype=dtype)
        if len(found) < 3 or peak is None:
            continue
        m, n, k, measured = (_column(found, name) for name in ("m", "n", "k", "time_s"))
        keys = ("gemm_efficiency_fp8", "gemm_half_k_fp8") if dtype == "fp8" else ("gemm_efficiency_bf16", "gemm_half_k")
        best = (np.inf, 0.0, 0.0)
        for half_k in np.geomspace(1.0, 4000.0, 60):
            for efficiency in np.linspace(0.2, 1.2, 201):
                trial = _with(base, {keys[0]: float(efficiency), keys[1]: float(half_k)})
                times = gemm_time(m, n, k, trial, peak, hardware.sms, hardware.memory_bytes_per_s, fp8=dtype == "fp8")
                error = float(np.median(np.abs(times / measured - 1)))
                best = min(best, (error, float(efficiency), float(half_k)))
        errors[f"gemm {dtype}"], changes[keys[0]], changes[keys[1]] = best


def _fit_attention(
    rows: Rows, hardware: Hardware, base: Constants, changes: dict[str, float], errors: dict[str, float]
) -> None:
    """Efficiencies and half-sequence from head dimensions 64 and 128; factors for the others from the rest."""
    common = [row for row in _of(rows, "attention") if row["head_dim"] in (64, 128)]
    if len(common) < 2:
        return
    best = (np.inf, 0.0, 0.0, 0.0)
    for half_seq in np.geomspace(1.0, 4000.0, 80):
        ideal = _with(
            base,
            {"attention_half_seq": float(half_seq)}
            | dict.fromkeys(("attention_efficiency_forward", "attention_efficiency_backward"), 1.0),
        )
        forward, backward = _attention(common, ideal, hardware)
        ef, eb = float(np.median(forward)), float(np.median(backward))
        error = float(np.median(np.abs(np.concatenate([forward / ef, backward / eb]) - 1)))
        best = min(best, (error, ef, eb, float(half_seq)))
    errors["attention"] = best[0]
    names = ("attention_efficiency_forward", "attention_efficiency_backward", "attention_half_seq")
    changes.update(zip(names, best[1:], strict=True))
    others = [row for row in _of(rows, "attention") if row["head_dim"] not in (64, 128)]
    if others:
        fitted = _with(base, {name: changes[name] for name in names})
        fitted = _with(fitted, {"attention_head_dim_factor": 1.0, "attention_head_dim_factor_backward": 1.0})
        forward, backward = _attention(others, fitted, hardware)
        changes["attention_head_dim_factor"] = float(np.median(forward))
        changes["attention_head_dim_factor_backward"] = float(np.median(backward))


def _attention(rows: Rows, constants: Constants, hardware: Hardware) -> tuple[Array, Array]:
    """Predicted over measured time, forward and backward: the efficiency that is missing."""
    forward, backward = [], []
    for row in rows:
        seq = row["seq_length"]
        f, b = attention_time(
            float(row["sequences"]), seq, float(seq), row["heads"], row["head_dim"], constants, hardware.peak_flops.bf16
        )
        forward.append(float(f) / row["forward_s"])
        backward.append(float(b) / row["backward_s"])
    return np.array(forward), np.array(backward)


def _fit_links(rows: Rows, hardware: Hardware, changes: dict[str, float]) -> None:
    """Bandwidth from the largest messages, latency from the smallest (a ring has ranks - 1 hops)."""
    found = [row for row in rows if row["kind"] in ("all_gather", "reduce_scatter")]
    if not found or hardware.nvlink_bytes_per_s is None:
        return
    most, least = max(row["bytes"] for row in found), min(row["bytes"] for row in found)
    rate = median(row["bytes"] / row["time_s"] for row in found if row["bytes"] == most)
    hop = median(row["time_s"] / (row["ranks"] - 1) for row in found if row["bytes"] == least)
    changes["nvlink_efficiency"], changes["nvlink_latency_s"] = rate / hardware.nvlink_bytes_per_s, hop


def _with(constants: Constants, changes: Mapping[str, float]) -> Constants:
    return replace(constants, **changes)


def fit_run(train_rows: Rows, plan: Plan, base: Calibration, *, name: str, source: str) -> Fitted:
    """The site's factor on step time and offset on memory, from a run's metrics against its plan under ``base``.

    Args:
        train_rows: rows of kind train of metrics.jsonl, by step.
        plan: of the run's own recipe, made with ``base``.

    Raises:
        RefusedInput: too few steps, or a plan without predictions.
    """
    rows = [row for row in train_rows if not row.get("skipped")][WARM_UP_STEPS:]
    if len(rows) < MIN_STEPS:
        wanted = WARM_UP_STEPS + MIN_STEPS
        raise RefusedInput(f"a fit needs at least {wanted} steps; this run has {len(train_rows)}")
    if plan.step_time_s is None or plan.memory is None:
        raise RefusedInput("the plan of this run has no predicted step time to fit")
    measured = median(row["step_time_s"] for row in rows)
    peak = max(max(row["memory_peak_bytes"]) for row in rows)
    constants = base.constants
    changes = {
        "site_factor": float(f"{constants.site_factor * measured / plan.step_time_s:.4g}"),
        "memory_offset_bytes": round(constants.memory_offset_bytes + peak - plan.memory.peak_bytes),
    }
    spread = median(abs(row["step_time_s"] / measured - 1) for row in rows)
    fitted = Calibration(
        name=name, hardware=base.hardware, source=source, constants=base.with_constants(**changes).constants
    )
    return Fitted(calibration=fitted, errors={"step time (spread of steps)": spread})
