"""Starts the measurement of this machine's kernels in processes of their own: the command line has no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from colosseum.errors import RunFailed
from colosseum.launch.local.processes import gpu_count, require_packages

Say = Callable[[str], None]


def measure(kinds: Sequence[str], say: Say) -> dict[str, Any]:
    """Kernels on one device, then collectives over all GPUs of this machine if there are several.

    Raises:
        EnvironmentFault: torch is missing.
        RunFailed: the measurement failed.
    """
    require_packages()
    kernels = [kind for kind in kinds if kind != "collectives"]
    document: dict[str, Any] = {"rows": []}
    gpus = gpu_count()
    if kernels:
        document = _run([sys.executable], kernels, say)
    if "collectives" in kinds and gpus > 1:
        ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
        links = _run(ranks, ["collectives"], say)
        document = {**links, "rows": [*document["rows"], *links["rows"]]}
    return document


def _run(launcher: Sequence[str], kinds: Sequence[str], say: Say) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="colosseum-") as folder:
        target = Path(folder) / "measurements.json"
        argv = [*launcher, "-m", "colosseum.runtime.measure", str(target), *kinds]
        # Safe path: torchrun's workers too import nothing of the folder that the command is typed in.
        env = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONSAFEPATH": "1"}
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env) as process:
            last = ""
            for line in process.stderr or ():
                last = line.strip() or last
                say(line.rstrip("\n"))
        if process.returncode or not target.is_file():
            raise RunFailed(f"the measurement failed with exit code {process.returncode}: {last}")
        document: dict[str, Any] = json.loads(target.read_text())
        return document
