"""The order of the files."""

from __future__ import annotations

from pathlib import Path

import pytest

LONGEST = (
    *("runtime/test_layouts.py", "slurm/test_slurm_training.py", "runtime/test_align.py", "runtime/test_runs.py"),
    *("test_demo.py", "runtime/test_rehearsal.py", "runtime/oracle/test_oracle.py", "launch/test_sweep.py"),
    *("runtime/test_reloading.py", "runtime/test_lora.py", "slurm/test_slurm_submission.py"),
    *("evaluation/test_evaluate.py", "runtime/test_kills.py", "launch/test_campaign_here.py"),
)
"""Files of a minute and more. With two processes a file that is long and begun last leaves one of them idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    places = {here / file: place for place, file in enumerate(LONGEST)}
    assert all(path.exists() for path in places), "LONGEST names files that are not there"
    items.sort(key=lambda item: places.get(item.path, len(places)))
