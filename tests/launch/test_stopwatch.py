"""Where the seconds of a command went."""

from __future__ import annotations

import subprocess
import sys
import time

from colosseum.launch.stopwatch import sentence

PROGRAM = """
import time
from colosseum.launch.stopwatch import part, reading, start_reading
assert reading() is None
start_reading(True)
for _ in range(2):
    with part("sbatch"):
        time.sleep(0.1)
print(reading())
"""


def test_own_work_is_what_slurm_does_not_take() -> None:
    parts = {"compile": 0.3, "sbatch --test-only": 0.25, "sbatch": 0.5}
    assert sentence(parts, 1.5) == (
        "seconds: compile 0.30, sbatch --test-only 0.25, sbatch 0.50; own work 0.75, total 1.50"
    )


def test_parts_are_summed_and_the_total_counts_from_the_start_of_the_process() -> None:
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    wall_s = time.monotonic() - began_s
    figures = dict(text.rsplit(" ", 1) for text in done.stdout.strip().partition(": ")[2].replace(";", ",").split(", "))
    start, slurm, own, total = (
        float(figures[name]) for name in ("start of Python and imports", "sbatch", "own work", "total")
    )
    assert slurm >= 0.2
    assert 0 < start < total <= wall_s + 0.05  # the kernel counts in hundredths
    assert abs(own + slurm - total) < 0.02
