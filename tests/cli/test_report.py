"""``colosseum report``: text, JSON and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.monitor.made import killed_once


def test_a_report_as_text_json_and_files(cli: Cli, tmp_path: Path) -> None:
    run = killed_once(tmp_path / "runs" / "20261201-000000-x-abcd")
    done = cli("report", "x-abcd", "--runs", "runs", "--html", "r.html", "--svg", "r.svg", "--csv", "r.csv")
    assert done.code == 0, done.err
    assert "goodput" in done.out
    assert "steps that a later attempt, or a rewind, trained again" in " ".join(done.out.split())
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "r.svg").read_text().startswith("<svg")
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 12
    found = json.loads(cli("report", str(run.root), "--json").out)
    (one,) = found["runs"]
    causes = [value for name, value in one.items() if name.endswith("_s") and name not in ("wall_s", "stopped_s")]
    assert sum(causes) == pytest.approx(one["wall_s"]) == pytest.approx(60)


def test_a_run_that_is_not_there(cli: Cli) -> None:
    done = cli("report", "none", "--runs", "runs", "--html", "r.html")
    assert done.code == 2
    assert "no such run" in done.said
    assert not Path("r.html").exists()


def test_a_file_that_cannot_be_written_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    run = killed_once(tmp_path / "run")
    done = cli("report", str(run.root), "--html", str(tmp_path / "none" / "r.html"))
    assert done.code == 3
    assert "cannot write" in done.said
