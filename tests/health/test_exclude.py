"""The exclude list reaches sbatch, with the script's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from colosseum.health.exclude import FOLDER, excluded, write_excluded
from colosseum.launch.slurm.commands import _excluded


@pytest.mark.parametrize(
    ("listed", "own", "option"),
    [
        ([], "", []),
        (["n1", "n2"], "", ["--exclude=n1,n2"]),
        (["n1"], "#SBATCH --exclude=n7,n8\n", ["--exclude=n7,n8,n1"]),
    ],
)
def test_a_submission_leaves_out_what_is_listed(tmp_path: Path, listed: list[str], own: str, option: list[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "job.sbatch").write_text(f"#!/bin/bash\n{own}echo\n")
    (tmp_path / FOLDER).mkdir()
    write_excluded(tmp_path, listed)
    assert _excluded(run, "job.sbatch") == option


def test_what_is_no_name_of_a_node_is_not_passed_on(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "exclude").write_text("n1\n--wrap=x\n;rm\nn2\n")
    assert excluded(tmp_path) == ["n1", "n2"]
