"""Fits the constants of the cost model that formulas do not give to published step times.

Least squares of log(predicted / measured), a row's weight 1 over the rows of its configuration (releases and GPU
counts repeat one), with a weak pull towards the priors: step times alone do not tell, say, GEMM from attention
efficiency, and an unpulled fit leaves the range that measurements allow.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml

from colosseum.planning.constants import Calibration, Constants, shipped_calibration
from tests.validation.published import Row, rows, step_time

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Where a constant is before the fit, and how far (a factor, as a log) it may go at the price of one row."""

    value: float
    spread: float


PRIORS = {
    # Sustained shares: cuBLAS and Transformer Engine on a power-limited H100 (0.65 to 0.8 of peak for large GEMMs).
    "gemm_efficiency_bf16": Prior(value=0.74, spread=0.06),
    "gemm_efficiency_fp8": Prior(value=0.72, spread=0.08),
    "gemm_half_k": Prior(value=250.0, spread=0.3),
    "gemm_half_k_fp8": Prior(value=900.0, spread=0.3),
    "gemm_half_m": Prior(value=50.0, spread=0.3),
    # Measured on an H200, the same compute die (h200_measurements.json).
    "attention_efficiency_forward": Prior(value=0.594, spread=0.04),
    "attention_efficiency_backward": Prior(value=0.487, spread=0.04),
    "attention_half_seq": Prior(value=397.0, spread=0.2),
    "memory_efficiency": Prior(value=0.8, spread=0.05),
    "elementwise_scale": Prior(value=1.3, spread=0.15),
    "cast_scale": Prior(value=1.5, spread=0.25),
    "layer_overhead_s": Prior(value=9e-5, spread=0.3),
    # NCCL reaches 0.75 to 0.8 of the link.
    "nvlink_efficiency": Prior(value=0.77, spread=0.05),
    "network_efficiency": Prior(value=0.78, spread=0.05),
    "tp_exposed": Prior(value=0.25, spread=0.3),
    "cp_exposed": Prior(value=0.15, spread=0.5),
    "p2p_exposed": Prior(value=0.2, spread=0.5),
    "turn_overhead_s": Prior(value=1e-4, spread=0.7),
    "dp_exposed": Prior(value=0.6, spread=0.3),
    "step_overhead_s": Prior(value=5e-3, spread=0.5),
    "jitter_bf16": Prior(value=3e-3, spread=0.4),
    "jitter_fp8": Prior(value=4.5e-3, spread=0.4),
}
PULL = 0.02
"""Weight of a prior against a row: being one spread off costs as much as 2% of error in one configuration."""
RELEASE_SPREAD = 0.03
"""Releases of one software differ by about this much in pace; a fit that ignores it bends the constants."""
ROUNDS = 6


def fitted_rows() -> tuple[Row, ...]:
    """The rows constants may be fitted to."""
    return tuple(r for r in rows() if r.set == "fit" and r.step_time_s is not None)


def fit(some: Sequence[Row], base: Constants) -> Constants:
    """Gauss-Newton in the logarithms of the constants, from the priors."""
    names = list(PRIORS)
    prior = np.log([PRIORS[n].value for n in names])
    spread = np.array([PRIORS[n].spread for n in names])
    same = Counter(_configuration(r) for r in some)
    weight = np.array([same[_configuration(r)] ** -0.5 for r in some])
    measured = np.log([r.step_time_s or 1.0 for r in some])
    sources = sorted({r.source for r in some})
    release = np.array([[r.source == s for s in sources] for r in some], dtype=np.float64)

    def residuals(x: Vector) -> Vector:
        constants, pace = _with(base, names, x[: len(names)]), x[len(names) :]
        errors = np.log([step_time(r, constants) for r in some]) + release @ pace - measured
        return np.concatenate(
            [errors * weight, PULL * (x[: len(names)] - prior) / spread, PULL * pace / RELEASE_SPREAD]
        )

    x = np.concatenate([prior, np.zeros(len(sources))])
    for _ in range(ROUNDS):
        now = residuals(x)
        slopes = np.stack([(residuals(x + d) - now) / 1e-3 for d in 1e-3 * np.eye(len(x))], axis=1)
        step = np.linalg.lstsq(slopes, -now, rcond=None)[0]
        x = x + np.clip(step, -0.3, 0.3)
        if np.max(np.abs(step)) < 1e-3:
            break
    return _with(base, names, x[: len(names)])


def _configuration(row: Row) -> tuple[str, ...]:
    """Model, precision and split: what weak scaling and later releases repeat."""
    keys = ("precision=", "parallelism.tp", "parallelism.pp", "parallelism.cp")
    return (row.family, *(w for w in row.overrides if w.startswith(keys)))


def _with(base: Constants, names: Sequence[str], logs: Vector) -> Constants:
    values = dict(zip(names, np.exp(logs).tolist(), strict=True))
    return Constants(**(asdict(base) | {n: min(v, 1.0) if n.endswith("_exposed") else v for n, v in values.items()}))


def leave_one_family_out(base: Constants) -> dict[str, Constants]:
    """Constants for each model family, fitted to the rows of all others."""
    some = fitted_rows()
    families = dict.fromkeys(r.family for r in some)
    return {f: fit([r for r in some if r.family != f], base) for f in families}


SUSTAINED = (
    "gemm_efficiency_bf16",
    "gemm_efficiency_fp8",
    "attention_efficiency_forward",
    "attention_efficiency_backward",
    "memory_efficiency",
)
"""Shares of a card's peaks; of another card's, software and power leave another part."""


def scaled(some: Sequence[Row], base: Constants) -> Constants:
    """Another card from few rows: one factor on all sustained shares, the median that the rows ask for."""

    def at(factor: float) -> Constants:
        return Constants(**(asdict(base) | {n: getattr(base, n) * factor for n in SUSTAINED}))

    factors = np.linspace(0.5, 1.2, 141)
    errors = [[np.log(step_time(r, at(f)) / (r.step_time_s or 1.0)) for r in some] for f in factors]
    return at(float(factors[int(np.argmin(np.sum(np.abs(errors), axis=1)))]))


def main(folder: Path) -> None:
    """Fits all rows and rewrites the calibration files."""
    shipped = shipped_calibration("h100-sxm")
    assert shipped is not None
    constants = fit(fitted_rows(), shipped.constants)
    said = f"fitted to {len(fitted_rows())} published H100 step times (tests/validation) by scripts/fit-planner"
    _write(folder, shipped.with_constants(**asdict(constants)), "h100-sxm", said)
    for hardware in ("b200", "gb200"):
        some = [r for r in rows() if r.set == "other" and r.hardware == hardware]
        said = f"h100-sxm's constants, sustained shares times one factor fitted to {len(some)} published step times"
        _write(folder, shipped.with_constants(**asdict(scaled(some, constants))), hardware, said)


def _write(folder: Path, calibration: Calibration, hardware: str, source: str) -> None:
    data = calibration.as_data() | {"name": hardware, "hardware": hardware, "source": source}
    data["constants"] = {n: float(f"{v:.4g}") for n, v in data["constants"].items()}
    (folder / f"{hardware}.yaml").write_text(yaml.safe_dump(data, sort_keys=False, width=120))
    sys.stdout.write(f"{folder / hardware}.yaml\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
