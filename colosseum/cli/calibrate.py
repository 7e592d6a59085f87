"""``colosseum calibrate``: the planner's constants, measured on this machine or fitted to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colosseum.cli.output import Json, Runs, emit, note
from colosseum.errors import RefusedInput
from colosseum.launch.runs.jobs import runs_folder
from colosseum.launch.runs.submit import find_run
from colosseum.launch.trials.calibration import KINDS, fit, fit_to_run, measure_here, read_measured, write
from colosseum.planning.constants import read_calibration

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
    """Measure this machine's kernels (a few minutes on a GPU), or fit a real run, and write a calibration file.

    A plan uses it with --calibration FILE.
    """
    if source is not None and (only is not None or hardware is not None or measured is not None):
        raise RefusedInput("--from fits a run and cannot be combined with --only, --measured or --hardware")
    if measured is not None and only is not None:
        raise RefusedInput("--measured fits its whole file and cannot be combined with --only")
    begin = None if base is None else read_calibration(base)
    if source is not None:
        fitted = fit_to_run(find_run(source, runs_folder(runs, None)), begin)
    else:
        document = read_measured(measured) if measured is not None else measure_here(only, note)
        fitted = fit(document, hardware, begin)
    made = write(out, fitted, begin)
    emit(as_json, made.as_json(), made.text)
