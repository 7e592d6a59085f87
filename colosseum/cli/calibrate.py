"""``colosseum calibrate``: the planner's constants, measured on this machine or fitted to a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colosseum.cli.output import Json, Runs, document, note, stdout

if TYPE_CHECKING:
    from colosseum.planning.calibration import Fitted
    from colosseum.planning.constants import Calibration

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

Only = Annotated[
    str | None,
    typer.Option(
        "--only",
        metavar="KIND,…",
        help=f"Comma-separated kinds of measurement: {', '.join(KINDS)}. Default: all that this machine supports.",
    ),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="RUN", help="Fit site factor and memory offset to a run's metrics instead."),
]
Measured = Annotated[
    Path | None,
    typer.Option(
        "--measured",
        metavar="FILE",
        help="Fit the measurements that `python -m colosseum.runtime.measure FILE` wrote on another machine.",
    ),
]
HardwareName = Annotated[
    str | None,
    typer.Option("--hardware", metavar="NAME", help="Hardware file. Default: the one that matches the device."),
]
Base = Annotated[
    Path | None, typer.Option("--base", metavar="FILE", help="Calibration to start from. Default: the shipped one.")
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Default: calibration-<hardware>.yaml in this folder.")
]


def calibrate(
    only: Only = None,
    source: From = None,
    measured: Measured = None,
    hardware: HardwareName = None,
    base: Base = None,
    out: Out = None,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Measure this machine's kernels (some minutes on a GPU), or fit a real run, and write a calibration file.

    A plan uses it with --calibration FILE.
    """
    from colosseum.errors import RefusedInput
    from colosseum.planning.constants import read_calibration

    begin = None if base is None else read_calibration(base)
    rows: list[dict[str, Any]] = []
    if source is not None:
        if only is not None or hardware is not None or measured is not None:
            raise RefusedInput("--from fits a run and cannot be combined with --only, --measured or --hardware")
        fitted = _from_run(source, runs, begin)
    elif measured is not None:
        if only is not None:
            raise RefusedInput("--measured fits its whole file and cannot be combined with --only")
        fitted, rows = _fitted(_read(measured), hardware, begin)
    else:
        fitted, rows = _fitted(_measure(_kinds(only)), hardware, begin)
    target = out or Path(f"calibration-{fitted.calibration.hardware}.yaml")
    _write(target, fitted.calibration, rows)
    changed = _changes(fitted.calibration, begin)
    if as_json:
        document(
            {
                "schema": "colosseum.calibrated/1",
                "file": str(target),
                "name": fitted.calibration.name,
                "hash": fitted.calibration.hash,
                "constants": {name: new for name, (_, new) in changed.items()},
                "errors": dict(fitted.errors),
            }
        )
        return
    _show(fitted, changed, target)


def _kinds(only: str | None) -> list[str]:
    from colosseum.errors import Fault, RefusedInput

    kinds = list(KINDS) if only is None else [kind.strip() for kind in only.split(",")]
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        rule = "there is no measurement of that name"
        raise RefusedInput([Fault(path="--only", value=unknown[0], rule=rule, nearest=KINDS, where="command line")])
    return kinds


def _measure(kinds: list[str]) -> Any:
    from colosseum.errors import EnvironmentFault
    from colosseum.launch.local.measuring import measure

    document = measure(kinds, note)
    if not document["rows"]:
        raise EnvironmentFault("nothing was measured: collectives need more than one GPU in this machine")
    return document


def _read(path: Path) -> Any:
    import json

    from colosseum.errors import Fault, RefusedInput

    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        rule = error.strerror if isinstance(error, OSError) else "is not JSON"
        raise RefusedInput([Fault(path="--measured", value=str(path), rule=rule or "cannot be read")]) from error


def _fitted(measured: Any, name: str | None, base: Calibration | None) -> tuple[Fitted, list[dict[str, Any]]]:
    import datetime

    from colosseum.planning.calibration import fit_measurements, measurements
    from colosseum.planning.constants import calibration_for
    from colosseum.recipe.load import load

    found = measurements(measured)
    name = name or _hardware_of(found.device)
    loaded = load("generic", [f"hardware={name}", *(_CPU_WORDS if name == "cpu" else ())])
    begin = base or calibration_for(name)
    day = datetime.datetime.fromtimestamp(found.time_unix_s, datetime.UTC).date()
    fitted = fit_measurements(
        found,
        loaded.recipe.hardware,
        begin,
        name=f"{name}-measured",
        source=f"colosseum calibrate on {found.device}, torch {found.torch}, {day}; the rest from {begin.name}",
    )
    return fitted, [dict(row) for row in found.rows]


def _hardware_of(device: str) -> str:
    """Name of the shipped hardware file that suits a device.

    Raises:
        RefusedInput: none does.
    """
    from colosseum.errors import Fault, RefusedInput

    for word, name in _DEVICES.items():
        if word in device:
            return name
    rule = f"no shipped hardware file matches {device}"
    raise RefusedInput([Fault(path="--hardware", value=None, rule=rule, nearest=tuple(_DEVICES.values()))])


def _from_run(source: str, runs: Path | None, base: Calibration | None) -> Fitted:
    from colosseum.bundle import read_bundle
    from colosseum.engines.planned import plan
    from colosseum.launch.runs.submit import find_run, runs_root
    from colosseum.planning.calibration import fit_run
    from colosseum.planning.constants import calibration_for
    from colosseum.recipe.load import load_cluster
    from colosseum.rundir import latest_rows

    run = find_run(source, runs_root(runs, load_cluster()))
    recipe = read_bundle(run.bundle).recipe
    begin = base or calibration_for(recipe.hardware.name)
    return fit_run(
        latest_rows(run.metrics, "train"),
        plan(recipe, begin),
        begin,
        name=f"{recipe.cluster.name}-{recipe.hardware.name}",
        source=f"colosseum calibrate --from {run.root.name}, starting from {begin.name}",
    )


def _write(target: Path, calibration: Calibration, rows: list[dict[str, Any]]) -> None:
    from colosseum.atomic import write_whole
    from colosseum.bundle import to_yaml
    from colosseum.errors import EnvironmentFault

    data = calibration.as_data()
    if rows:
        data["measurements"] = rows
    try:
        write_whole(target, to_yaml(data))
    except OSError as error:
        raise EnvironmentFault(f"cannot write {target}: {error.strerror}") from error


def _changes(calibration: Calibration, base: Calibration | None) -> dict[str, tuple[float, float]]:
    from dataclasses import asdict

    from colosseum.planning.constants import calibration_for

    before = asdict((base or calibration_for(calibration.hardware)).constants)
    after = asdict(calibration.constants)
    return {name: (before[name], value) for name, value in after.items() if value != before[name]}


def _show(fitted: Fitted, changed: dict[str, tuple[float, float]], target: Path) -> None:
    from rich.table import Table

    out = stdout()
    table = Table("constant", "before", "now", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, (before, after) in changed.items():
        table.add_row(name, f"{before:.4g}", f"{after:.4g}")
    out.print(table)
    for kind, error in fitted.errors.items():
        out.print(f"{kind}: median error of the fit {error:.1%}", highlight=False)
    out.print(f"wrote {target}; use it with: colosseum plan RECIPE --calibration {target}", soft_wrap=True)
