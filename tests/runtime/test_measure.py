"""The measurements themselves, on this machine's CPU with tiny shapes: kernels, and collectives of two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from colosseum.planning.calibration import Measurements, measurements

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def measured(target: Path, *kinds: str, launcher: tuple[str, ...] = ()) -> Measurements:
    argv = [sys.executable, *launcher, "-m", "colosseum.runtime.measure", str(target), *kinds]
    env = {**os.environ, "COLOSSEUM_MEASURE_SECONDS": "0.02", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(argv, env=env, start_new_session=True, stderr=subprocess.PIPE, text=True) as process:
        try:
            _, said = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the ranks too, or they hang on
            raise
    assert process.returncode == 0, said
    return measurements(json.loads(target.read_text()))


def test_every_kernel_is_timed_by_shape(tmp_path: Path) -> None:
    found = measured(tmp_path / "out.json", "gemm", "attention", "memory")
    assert found.device == "cpu"
    assert {row["kind"] for row in found.rows} == {"gemm", "attention", "copy", "norm"}
    assert {row["head_dim"] for row in found.rows if row["kind"] == "attention"} == {64, 192}
    rates = [2 * r["m"] * r["n"] * r["k"] / r["time_s"] for r in found.rows if r["kind"] == "gemm"]
    assert all(1e7 < rate < 1e14 for rate in rates), "a core makes between 10 MFLOP/s and 100 TFLOP/s"


def test_only_what_is_asked_for_is_measured(tmp_path: Path) -> None:
    found = measured(tmp_path / "out.json", "memory")
    assert [row["kind"] for row in found.rows] == ["copy", "norm"]


def test_collectives_count_the_bytes_that_a_rank_sends(tmp_path: Path) -> None:
    ranks = 2
    found = measured(tmp_path / "out.json", "collectives", launcher=TORCHRUN)
    assert sorted({row["kind"] for row in found.rows}) == ["all_gather", "reduce_scatter"]
    for row in found.rows:
        assert row["ranks"] == ranks
        assert row["bytes"] in {(1 << 16) * (ranks - 1), (1 << 10) * (ranks - 1)}
