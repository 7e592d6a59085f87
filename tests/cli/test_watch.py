"""``colosseum watch``: the page of a run that trains, at the widths of a terminal, and what a refresh costs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from rich.cells import cell_len

from colosseum.launch.runs.jobs import job_of
from colosseum.launch.runs.screen import screen
from colosseum.monitor.recent import read_recent
from colosseum.rundir import RunDir, append_line
from tests.cli.conftest import Cli
from tests.monitor.made import MadeRun


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run of 300 steps, as if its process were this one."""
    made = MadeRun(tmp_path / "runs" / "20261201-000000-live-abcd")
    plan = {"step_time_s": 1.9, "step_time_range_s": [1.8, 2.1], "mfu": {"causal": 0.5}}
    (made.run.bundle / "plan.json").write_text(json.dumps(plan))
    began = time.time() - 700
    row = {"time_unix_s": began, "scheduler": "local", "job_id": str(os.getpid()), "argv": ["x"]}
    append_line(made.run.submissions, row)
    made.begin(0, began)
    for step in range(1, 301):
        slow = {"slowest_rank": 3, "slowest_rank_s": 0.9, "median_rank_s": 0.6}
        more = {"forward_backward_time_s": 1.7, "optimizer_time_s": 0.2}
        made.train(0, step, began + 2 * step, loss=2 + 9 / step, **slow, **more)
    append_line(made.run.ledger, {"step": 300, "attempt": 0, "tokens_by_source": {"/d/wiki": 6e8, "/d/code": 4e8}})
    reason = "loss 9.1 is \x1b[31m above 5.2 " + "x" * 300
    append_line(
        made.run.events, {"kind": "loss_spike", "step": 200, "attempt": 0, "time_unix_s": began, "reason": reason}
    )
    return made.run


@pytest.mark.parametrize("width", [80, 160])
def test_a_page_fits_the_terminal(cli: Cli, run: RunDir, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = cli("watch", "live-abcd", "--runs", "runs")
    assert done.code == 0, done.err
    assert max(cell_len(line.rstrip()) for line in done.out.splitlines()) <= width
    words = " ".join(done.out.split())
    for said in (
        *("live-abcd", "step 300/20", "loss 2.0300", "2 s (plan: 1.8 to 2.1 s), 1,000 tokens/s"),
        *("40.0% (plan: 45.2% to 52.8%), below the plan", "data 5%, forward, backward 80%, optimizer 10%, other 5%"),
        *("3: 1.50 times the median", "1.0B tokens: wiki 60.0%, code 40.0%", "none yet", "loss spike"),
    ):
        assert said in words
    assert "\x1b" not in done.out


def test_a_run_that_waits_or_is_not_there(cli: Cli, tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "runs" / "20261201-000000-new-abcd")
    assert "was never submitted" in cli("watch", "new-abcd", "--runs", "runs").said
    append_line(made.run.submissions, {"time_unix_s": 1.0, "scheduler": "local", "job_id": "7", "argv": ["x"]})
    assert "no step yet" in cli("watch", "new-abcd", "--runs", "runs").out
    none = cli("watch", "none", "--runs", "runs")
    assert (none.code, "no such run" in none.said) == (2, True)


def test_a_refresh_costs_the_same_however_long_the_run_is(run: RunDir) -> None:
    """A refresh comes every 2 s, and the run itself does nothing for it. CPU seconds."""
    text = run.metrics.read_text()
    with run.metrics.open("a") as file:
        for _ in range(200):
            file.write(text)
    job = job_of(run)
    screen(job, read_recent(run), 80)
    began = time.process_time()
    for _ in range(20):
        screen(job.read_again(), read_recent(run), 80)
    assert (time.process_time() - began) / 20 < 0.05
