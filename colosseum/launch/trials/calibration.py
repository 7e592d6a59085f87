"""The planner's constants, fitted to measurements of this or another machine, or to a run; written as a file."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colosseum.atomic import write_whole
from colosseum.bundle import read_bundle, to_yaml
from colosseum.console import columns
from colosseum.engines.planned import plan
from colosseum.errors import EnvironmentFault, Fault, RefusedInput
from colosseum.launch.local.measuring import measure
from colosseum.launch.schedulers.base import Say
from colosseum.planning.calibration import Fitted, fit_measurements, fit_run, measurements
from colosseum.planning.constants import Calibration, calibration_for
from colosseum.recipe.load import load
from colosseum.rundir import RunDir, latest_rows

if TYPE_CHECKING:
    from rich.console import RenderableType

KINDS = ("gemm", "attention", "memory", "collectives")
_DEVICES = {
    "H200": "h200-sxm",
    "H100": "h100-sxm",
    "GB200": "gb200",  # before B200, which its name holds
    "B200": "b200",
    "A100": "a100-80g",
    "L40S": "l40s",
    "cpu": "cpu",
}
_CPU_WORDS = ("precision=fp32", "fusion.rope=false", "fusion.cross_entropy=false", "fusion.gradient_accumulation=false")
"""What ``generic`` must leave out to be legal on a CPU; only its hardware section is read."""


def measure_here(only: str | None, say: Say) -> Any:
    """What ``runtime.measure`` measures on this machine.

    Args:
        only: comma-separated kinds; None = all.

    Raises:
        RefusedInput: there is no such kind.
        EnvironmentFault: nothing could be measured.
    """
    kinds = list(KINDS) if only is None else [kind.strip() for kind in only.split(",")]
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        rule = "no such measurement"
        raise RefusedInput([Fault(path="--only", value=unknown[0], rule=rule, nearest=KINDS, where="command line")])
    document = measure(kinds, say)
    if not document["rows"]:
        raise EnvironmentFault("nothing was measured: collectives need more than one GPU in this machine")
    return document


def read_measured(path: Path) -> Any:
    """What ``runtime.measure`` wrote on another machine."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        rule = error.strerror if isinstance(error, OSError) else "is not JSON"
        raise RefusedInput([Fault(path="--measured", value=str(path), rule=rule or "cannot be read")]) from error


def fit(measured: Any, name: str | None, base: Calibration | None) -> Fitted:
    """Constants from a document of ``runtime.measure``.

    Args:
        name: the hardware file; None = the shipped one that matches the device.
        base: gives what was not measured; None = the shipped calibration.
    """
    found = measurements(measured)
    name = name or _hardware_of(found.device)
    loaded = load("generic", [f"hardware={name}", *(_CPU_WORDS if name == "cpu" else ())])
    begin = base or calibration_for(name)
    day = datetime.datetime.fromtimestamp(found.time_unix_s, datetime.UTC).date()
    source = f"colosseum calibrate on {found.device}, torch {found.torch}, {day}; the rest from {begin.name}"
    return fit_measurements(found, loaded.recipe.hardware, begin, name=f"{name}-measured", source=source)


def _hardware_of(device: str) -> str:
    """Name of the shipped hardware file that suits a device.

    Raises:
        RefusedInput: none does.
    """
    for word, name in _DEVICES.items():
        if word in device:
            return name
    rule = f"no shipped hardware file matches {device}"
    raise RefusedInput([Fault(path="--hardware", value=None, rule=rule, nearest=tuple(_DEVICES.values()))])


def fit_to_run(run: RunDir, base: Calibration | None) -> Fitted:
    """Site factor and memory offset from the metrics of a run."""
    recipe = read_bundle(run.bundle).recipe
    begin = base or calibration_for(recipe.hardware.name)
    return fit_run(
        latest_rows(run.metrics, "train"),
        plan(recipe, begin),
        begin,
        name=f"{recipe.cluster.name}-{recipe.hardware.name}",
        source=f"colosseum calibrate --from {run.root.name}, starting from {begin.name}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A calibration file and what differs in it."""

    path: Path
    calibration: Calibration
    changed: Mapping[str, tuple[float, float]]
    """Constant -> its value before and now, where it is another."""
    errors: Mapping[str, float]
    """Kind of measurement -> median relative error of the fit."""

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": "colosseum.calibrated/1",
            "file": str(self.path),
            "name": self.calibration.name,
            "hash": self.calibration.hash,
            "constants": {name: now for name, (_, now) in self.changed.items()},
            "errors": dict(self.errors),
        }

    def text(self) -> list[RenderableType]:
        """What changed, how well the measurements are met, how to use the file."""
        rows = [(name, f"{before:.4g}", f"{now:.4g}") for name, (before, now) in self.changed.items()]
        return [
            columns(rows, ("constant", "before", "now"), pad_edge=False),
            *(f"{kind}: median error of the fit {error:.1%}" for kind, error in self.errors.items()),
            f"wrote {self.path}; use it with: colosseum plan RECIPE --calibration {self.path}",
        ]


def write(target: Path | None, fitted: Fitted, base: Calibration | None) -> Written:
    """Writes a calibration file, with the measurements it was fitted to.

    Args:
        target: None = calibration-HARDWARE.yaml in this folder.
        base: the calibration that the fit began with; None = the shipped one.

    Raises:
        EnvironmentFault: the file cannot be written.
    """
    made = fitted.calibration
    target = target or Path(f"calibration-{made.hardware}.yaml")
    data = made.as_data()
    if fitted.rows:
        data["measurements"] = [dict(row) for row in fitted.rows]
    try:
        write_whole(target, to_yaml(data))
    except OSError as error:
        raise EnvironmentFault(f"cannot write {target}: {error.strerror}") from error
    before, now = asdict((base or calibration_for(made.hardware)).constants), asdict(made.constants)
    changed = {name: (before[name], value) for name, value in now.items() if value != before[name]}
    return Written(path=target, calibration=made, changed=changed, errors=fitted.errors)
