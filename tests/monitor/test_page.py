"""The report's page: what it says, that nothing of a run folder becomes markup, and how a browser shows it."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from colosseum.monitor.contents import read_contents
from colosseum.monitor.page import page
from colosseum.monitor.table import csv_of
from colosseum.rundir import RunDir, append_line
from tests.monitor.made import MadeRun, killed_once

EVIL = "</style><script>alert(1)</script><img src=http://x.example/y>"


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def _text(runs: list[RunDir]) -> str:
    return page([read_contents(run) for run in runs])


def test_a_page_says_where_the_time_went(tmp_path: Path) -> None:
    text = " ".join(re.sub("<[^>]*>", " ", _text([killed_once(tmp_path / "run")])).split())
    assert "25.2% of 60 s of wall time trained new steps" in text
    assert "recomputed 6 s 10.0%" in text
    assert "4 8 completed made" in text  # attempt 1: from step 4 to step 8
    assert "1 crash 3 s 6 s 5 s 3 s 6 s 25 s" in text


def test_nothing_of_a_run_folder_becomes_markup(tmp_path: Path) -> None:
    run = killed_once(tmp_path / f"run{EVIL.replace('/', '')}")
    (run.bundle / "recipe.yaml").write_text(EVIL)
    manifest = {"versions": {EVIL: EVIL}, "lineage": {"run": EVIL, "step": 3}}
    (run.bundle / "manifest.json").write_text(json.dumps(manifest))
    append_line(run.events, {"kind": EVIL, "step": 1, "attempt": 0, "time_unix_s": 1.0, "reason": EVIL})
    append_line(run.ledger, {"step": 1, "attempt": 0, "tokens_by_source": {EVIL: 5}})
    tags = _Tags()
    tags.feed(_text([run]))
    names = {tag for tag, _ in tags.found}
    assert not names & {"script", "img", "iframe", "object", "link", "base"}
    assert not {name for _, attrs in tags.found for name in attrs} & {"href", "src", "onload", "onclick"}


def test_a_run_that_has_not_begun_has_a_page(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    assert "not started" in _text([made.run])
    assert "No attempt has begun." in _text([made.run])


def test_a_csv_marks_the_steps_that_were_trained_again(tmp_path: Path) -> None:
    lines = csv_of([read_contents(killed_once(tmp_path / "run"))]).splitlines()
    assert lines[0].startswith("run,kept,step,attempt,")
    assert [line.split(",")[1:4] for line in lines[5:9]] == [
        *(["0", str(step), "0"] for step in (5, 6, 7)),
        ["1", "5", "1"],
    ]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="Debian's chromium is not installed")
def test_a_browser_opens_it_without_a_script_or_the_network(tmp_path: Path) -> None:
    """Two runs of many steps, overlaid; the browser's own DOM is what is looked at."""
    runs = [killed_once(tmp_path / "one"), killed_once(tmp_path / "two")]
    for run in runs:
        made = MadeRun.__new__(MadeRun)
        made.run = run
        for step in range(9, 3000):
            made.train(1, step, 1060.0 + 2 * step)
    path = tmp_path / "page.html"
    path.write_text(_text(runs))
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    began = time.monotonic()
    done = subprocess.run(
        ["chromium", *options, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert time.monotonic() - began < 60
    assert done.stdout.count("<svg") == 6
    assert done.stdout.count('class="line"') >= 10
    assert "Refused to" not in done.stderr
