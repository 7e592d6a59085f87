"""The lines a run leaves: legal JSON, one a row, none lost to the attempt before."""

from __future__ import annotations

import json
import math
import multiprocessing
from pathlib import Path

import pytest

from colosseum.monitor.progress import progress_line
from colosseum.rundir import RunDir, latest_rows, read_lines
from colosseum.runtime.metrics import MetricsWriter


def test_rows_have_the_names_of_the_contract(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    writer = MetricsWriter(run, 2, tensorboard=True)
    writer.row("train", 7, loss=math.nan, grad_norm=math.inf, lr=1e-3, memory_peak_bytes=[1, 2], skipped=False)
    writer.event("loss_spike", 7, loss=9.0)
    writer.ledger(8, 64, {"a": 4096})
    writer.close()
    text = run.metrics.read_text()
    assert text.endswith("\n")
    row = json.loads(text, parse_constant=lambda word: f"{word} is no JSON")
    assert (row["kind"], row["step"], row["attempt"], row["skipped"]) == ("train", 7, 2, False)
    assert row["loss"] is None
    assert row["grad_norm"] is None
    assert row["memory_peak_bytes"] == [1, 2]
    assert [(e["kind"], e["step"], e["loss"]) for e in read_lines(run.events)] == [("loss_spike", 7, 9.0)]
    expected = {"step": 8, "attempt": 2, "consumed_samples": 64, "tokens_by_source": {"a": 4096}}
    assert list(read_lines(run.ledger)) == [expected]
    assert list(run.tensorboard.glob("events.out.tfevents.*"))


def test_a_line_torn_by_a_crash_costs_the_next_attempt_nothing(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    MetricsWriter(run, 0, tensorboard=False).row("train", 1, loss=2.0)
    with run.metrics.open("ab") as file:
        file.write(b'{"kind":"train","step":2,"att')
    writer = MetricsWriter(run, 1, tensorboard=False)
    writer.row("load", 1, time_s=0.5)
    writer.row("train", 2, loss=1.5)
    assert [row["kind"] for row in read_lines(run.metrics)] == ["train", "load", "train"]
    assert [(row["step"], row["loss"]) for row in latest_rows(run.metrics, "train")] == [(1, 2.0), (2, 1.5)]


def _write(root: Path, attempt: int) -> None:
    writer = MetricsWriter(RunDir(root), attempt, tensorboard=False)
    for step in range(200):
        writer.row("train", step, loss=float(attempt), text="x" * 500)


def test_lines_of_two_writers_never_mix(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write, args=(tmp_path, n)) for n in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert sorted((row["attempt"], row["step"]) for row in rows) == [(n, s) for n in range(2) for s in range(200)]


def test_progress_lines(tmp_path: Path) -> None:
    writer = MetricsWriter(RunDir(tmp_path), 0, tensorboard=False)
    figures = {"loss": 4.56789, "lr": 3e-4, "grad_norm": 1.25, "step_time_s": 0.5, "tokens_per_s": 8192.0}
    line = progress_line(writer.row("train", 12, skipped=False, **figures))
    assert line == "step     12  loss 4.5679  lr 3.00e-04  grad norm 1.250  0.500 s  8,192 tokens/s"
    assert "skipped" in progress_line(writer.row("train", 13, skipped=True, **figures))
    assert "loss" not in progress_line(writer.row("train", 14, loss=math.nan, skipped=False)), "no figure, no word"
    assert progress_line(writer.row("save", 12, time_s=1.5, bytes=3 * 2**20)).startswith("step     12  saved  ")
    assert progress_line({"kind": "else"}) == ""


def test_weights_and_biases_is_asked_for_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the package is optional: scripts/test does not install it")
    monkeypatch.setenv("WANDB_PROJECT", "tests")
    monkeypatch.setenv("WANDB_MODE", "offline")
    writer = MetricsWriter(RunDir(tmp_path), 0, tensorboard=False)
    writer.row("train", 1, loss=2.5)
    writer.close()
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
