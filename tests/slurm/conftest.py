"""A real Slurm on this machine (scripts/dev-slurm), one for all tests of a process."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEV_SLURM = ROOT / "scripts" / "dev-slurm"
FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")


@dataclass(frozen=True, slots=True)
class DevSlurm:
    """Commands of one running dev-slurm."""

    env: Mapping[str, str]
    """Environment of every command: SLURM_CONF and nothing of an outer job."""

    def run(self, *argv: str | Path, cwd: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, env=self.env, cwd=cwd, check=check, text=True, capture_output=True, timeout=60)

    def submit(self, cwd: Path, *argv: str) -> str:
        """Job id of ``sbatch argv``."""
        return self.run("sbatch", "--parsable", *argv, cwd=cwd).stdout.strip().split(";")[0]

    def state(self, job: str) -> str:
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").stdout.strip()

    def wait(self, job: str, states: Sequence[str] = FINAL, timeout_s: float = 60) -> str:
        """Polls until the job is in one of ``states``; the state reached."""
        end = time.monotonic() + timeout_s
        while (state := self.state(job)) not in states:
            if time.monotonic() > end:
                detail = self.run("scontrol", "show", "job", job, check=False).stdout
                raise TimeoutError(f"job {job} is {state}, not one of {states}, after {timeout_s} s\n{detail}")
            time.sleep(0.1)
        return state

    def dev_slurm(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.run(DEV_SLURM, *argv)


def _free_port_base() -> int:
    """A base whose controller and first node port nobody listens on; below the ports of ranks (20000 up).

    Two test processes that start together begin their search at different places.
    """
    bases = range(10000, 19800, 200)
    first = os.getpid() % len(bases)
    for base in (*bases[first:], *bases[:first]):
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", base))
                two.bind(("127.0.0.1", base + 101))
            except OSError:
                continue
            return base
    raise RuntimeError("no free ports")


def _settings(folder: str, **settings: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "SRUN_", "SALLOC_"))}
    env |= {"DEV_SLURM_DIR": folder, "DEV_SLURM_PORT": str(_free_port_base()), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return env | {f"DEV_SLURM_{k.upper()}": v for k, v in settings.items()} | {"SLURM_CONF": f"{folder}/slurm.conf"}


def _running(**settings: str) -> Iterator[DevSlurm]:
    folder = tempfile.mkdtemp(prefix="dev-slurm-", dir="/var/tmp")
    Path(folder).chmod(0o755)  # munge: others must be able to enter
    slurm = DevSlurm(_settings(folder, **settings))
    try:
        started = subprocess.run([DEV_SLURM, "start"], env=slurm.env, text=True, capture_output=True, timeout=180)
        if started.returncode:
            pytest.fail(f"scripts/dev-slurm start: {started.stderr}", pytrace=False)
        yield slurm
    finally:
        slurm.dev_slurm("stop")
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def slurm() -> Iterator[DevSlurm]:
    """Four nodes of eight GPUs, 360 ghost nodes, pyxis' options; no accounting, as on small clusters."""
    yield from _running(nodes="4", ghosts="360", pyxis="1")


@pytest.fixture(scope="session")
def slurm_with_accounting() -> Iterator[DevSlurm]:
    """Two nodes with slurmdbd."""
    yield from _running(nodes="2", accounting="1")
