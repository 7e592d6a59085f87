"""``start.py`` with a program that prints what an engine prints: metrics, outcome, exit codes, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from colosseum.engines.nemo1.engine import ALIGNER_LOG, CPT_LOG
from colosseum.engines.nemo2.engine import LOG as NEMO2_LOG
from colosseum.engines.start import row_of
from colosseum.launch.bundles.compile import library
from tests.engines.conftest import Rendered

# As Megatron-LM's training_log() prints it (core_v0.16.1).
LOG = (
    " [2026-01-01 00:00:00.000000] iteration {i:8d}/{n:8d} | consumed samples: {s:12d} |"
    " elapsed time per iteration (ms): 250.0 | throughput per GPU (TFLOP/s/GPU): 401.5 | learning rate: 1.000000E-05 |"
    " global batch size:     8 | lm loss: 2.500000E+00 | loss scale: 1.0 | grad norm: 0.731 |"
)
VALIDATION = " validation loss at iteration 2 on validation set | lm loss value: 2.400000E+00 | lm loss PPL: 1.1E+01 | "
PROGRAM = """
import os, pathlib, signal, sys, time
LOG, VALIDATION, mode = {log!r}, {validation!r}, os.environ["MODE"]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
pathlib.Path("checkpoints").mkdir(exist_ok=True)
for i in range(1, 4) if mode != "silent" else ():
    if mode != "quiet": print(LOG.format(i=i, n=3, s=8 * i), flush=True)
    if mode == "nan": sys.exit("AssertionError: found NaN in local forward loss calculation")
    if mode == "crash": sys.exit(9)
    if mode in ("stop", "quiet"):
        for _ in range(500):
            if stopped: break
            time.sleep(0.02)
        pathlib.Path("checkpoints/latest_checkpointed_iteration.txt").write_text("1")
        sys.exit(0)
if mode == "silent": sys.exit(0)
print(VALIDATION)
pathlib.Path("checkpoints/latest_checkpointed_iteration.txt").write_text("3")
print(sys.argv[1:])
"""


@pytest.fixture
def run(tmp_path: Path, rendered: Rendered) -> Path:
    """A run folder whose engine is PROGRAM."""
    words = (
        "engine=megatron-lm",
        "train.tokens=98304",
        "batch.gbs=8",
        "batch.seq_length=4096",
        "optimizer.warmup_steps=0",
    )
    engine = tmp_path / "run" / "bundle" / "engine"
    engine.mkdir(parents=True)
    for name, data in rendered("generic", *words).files.items():
        (engine / name).write_bytes(data)
    for name, data in library().items():
        path = tmp_path / "run" / "bundle" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "pretrain_gpt.py").write_text(PROGRAM.format(log=LOG, validation=VALIDATION))
    return tmp_path / "run"


def start(run: Path, mode: str, home: str = "home", rank: int = 0, *, by_hand: bool = False) -> subprocess.Popen[bytes]:
    env = {**os.environ, "MODE": mode, "MEGATRON_LM": str(run.parent / home), "RANK": str(rank)}
    env |= {} if by_hand else {"COLOSSEUM_ATTEMPT": "0"}
    return subprocess.Popen(
        [sys.executable, "-I", "bundle/engine/start.py"],
        cwd=run,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def outcome(run: Path, attempt: int = 0) -> dict[str, Any]:
    return dict(json.loads((run / f"attempts/{attempt:03d}/outcome.json").read_text()))


def test_a_complete_run_leaves_metrics_and_an_outcome(run: Path) -> None:
    process = start(run, "run")
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, out
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["step"]) for row in rows] == [("train", 1), ("train", 2), ("train", 3), ("val", 2)]
    assert rows[0]["loss"] == 2.5
    assert rows[0]["step_time_s"] == 0.25
    assert rows[0]["tokens_per_s"] == 8 * 4096 / 0.25
    assert rows[0]["model_tflops_per_gpu"] == 401.5
    assert rows[1]["consumed_tokens"] == 2 * 8 * 4096
    assert rows[3]["loss"] == 2.4
    assert outcome(run) | {"reason": ""} == {
        "kind": "completed", "retry": False, "step": 3, "last_saved_step": 3, "rank": 0, "reason": ""
    }  # fmt: skip


def test_usr1_saves_and_leaves(run: Path) -> None:
    process = start(run, "stop")
    deadline = time.monotonic() + 20
    while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=30)
    assert process.returncode == 75
    assert (outcome(run)["kind"], outcome(run)["retry"], outcome(run)["last_saved_step"]) == ("saved", True, 1)


def test_ranks_started_by_hand_have_an_attempt_of_their_own(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchrun starts them. The last rank shows the log, as Megatron-LM's does."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    (run / "attempts/000").mkdir(parents=True)
    (run / "attempts/000/outcome.json").write_text('{"kind": "crash", "retry": true, "reason": "before"}')
    first = start(run, "quiet", by_hand=True)
    deadline = time.monotonic() + 30
    while not (run / "checkpoints").exists() and time.monotonic() < deadline:  # its engine waits for the other rank's
        time.sleep(0.02)
    last = start(run, "stop", rank=1, by_hand=True)
    while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    second = start(run, "run", by_hand=True)
    out, _ = second.communicate(timeout=30)
    assert (second.returncode, b": it is running; nothing was started or changed" in out) == (76, True), out
    for process in (last, first):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert (first.returncode, last.returncode, outcome(run, 0)["reason"]) == (75, 75, "before")
    assert (outcome(run, 1)["kind"], outcome(run, 1)["step"]) == ("saved", 1)
    monkeypatch.setenv("WORLD_SIZE", "1")
    start(run, "run", by_hand=True).communicate(timeout=30)
    assert (outcome(run, 2)["kind"], json.loads((run / "attempts/002/env.json").read_text())["saved_step"]) == (
        "completed", 1
    )  # fmt: skip
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(row["attempt"], row["step"]) for row in rows if row["kind"] == "train"] == [(1, 1), (2, 1), (2, 2), (2, 3)]
    for rank in (0, 1):
        again = start(run, "run", rank=rank, by_hand=True)
        out, _ = again.communicate(timeout=30)
        assert (again.returncode, out) == (0, b"run is complete: nothing to do\n")
    assert sorted(p.name for p in (run / "attempts").iterdir()) == ["000", "001", "002"]


def test_a_rank_by_hand_without_an_engine_says_nothing_of_another_attempt(run: Path) -> None:
    (run / "attempts/000").mkdir(parents=True)
    other = start(run, "run", home="nowhere", rank=1, by_hand=True)
    out, _ = other.communicate(timeout=30)
    assert (other.returncode, b"or MEGATRON_LM set to its checkout" in out) == (76, True)
    assert not list((run / "attempts/000").iterdir())
    first = start(run, "run", home="nowhere", by_hand=True)
    first.communicate(timeout=30)
    assert (first.returncode, outcome(run, 1)["kind"]) == (76, "config_error")


def test_a_checkpoint_that_cannot_be_continued_from_ends_the_attempt(run: Path) -> None:
    plan(run, continues={"from": "../none/checkpoints", "step": 20, "to": "continued", "keep": False, "groups": {}})
    (run / "bundle/engine/continue_from.py").write_text("import sys\nsys.exit('no checkpoint of step 20')")
    done = start(run, "run")
    done.communicate(timeout=30)
    assert (done.returncode, outcome(run)["kind"]) == (76, "config_error")
    assert outcome(run)["reason"] == "cannot continue from ../none/checkpoints: no checkpoint of step 20"
    (run / "checkpoints").mkdir(exist_ok=True)
    (run / "checkpoints/latest_checkpointed_iteration.txt").write_text("2")  # its own, which it resumes from
    again = start(run, "run")
    again.communicate(timeout=30)
    assert again.returncode == 0


def plan(run: Path, **changes: Any) -> None:
    """Changes what command.json says of the run's length."""
    file = run / "bundle" / "engine" / "command.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("total", "may_drop", "kind", "code", "reason"),
    [
        (3, 0, "completed", 0, "every step was done"),
        (4, 1, "completed", 0, "Megatron-LM ended by itself at step 3 of 4 planned"),  # one partial batch of an epoch
        (5, 1, "saved", 75, "Megatron-LM ended by itself at step 3 of 5 planned: it is started again"),
        (0, 2, "completed", 0, "Megatron-LM ended by itself at step 3"),  # of a file whose rows nobody has counted
    ],
)
def test_the_end_of_an_engine_is_judged_by_the_plan(
    run: Path, total: int, may_drop: int, kind: str, code: int, reason: str
) -> None:
    plan(run, total_steps=total, may_drop_steps=may_drop)
    process = start(run, "run")
    process.communicate(timeout=30)
    found = outcome(run)
    assert (found["kind"], found["retry"], process.returncode, found["reason"]) == (kind, code == 75, code, reason)


def test_an_engine_that_is_stopped_just_before_its_end_is_saved(run: Path) -> None:
    plan(run, total_steps=2, may_drop_steps=1)
    process = start(run, "stop")
    deadline = time.monotonic() + 20
    while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=30)
    assert (process.returncode, outcome(run)["kind"], outcome(run)["step"]) == (75, "saved", 1)


@pytest.mark.parametrize(
    ("saved", "kind", "code", "reason"),
    [
        (3, "completed", 0, "Megatron-LM had nothing left to do after step 3 of 5 planned"),
        (0, "crash", 76, "Megatron-LM ended with exit code 0 and trained no step: see its log"),
    ],
)
def test_an_engine_that_trains_nothing_is_not_started_for_ever(
    run: Path, saved: int, kind: str, code: int, reason: str
) -> None:
    plan(run, total_steps=5)
    if saved:
        (run / "checkpoints").mkdir()
        (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(saved))
    other = start(run, "silent", rank=1)
    other.communicate(timeout=30)
    assert (other.returncode, (run / "attempts").exists()) == (0, False), "only the first rank judges a silent log"
    process = start(run, "silent")
    process.communicate(timeout=30)
    found = outcome(run)
    assert (found["kind"], found["retry"], process.returncode, found["reason"]) == (kind, False, code, reason)


def test_the_first_rank_knows_what_another_rank_s_log_showed(run: Path) -> None:
    plan(run, total_steps=5)
    start(run, "run", rank=1).communicate(timeout=30)
    (run / "attempts/000/outcome.json").unlink()
    process = start(run, "silent")
    process.communicate(timeout=30)
    assert (process.returncode, outcome(run)["kind"], outcome(run)["step"]) == (75, "saved", 3)


def test_the_first_rank_waits_for_the_log_of_another(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended first: the last rows were not written yet, and the complete run was started again."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    first = start(run, "silent")
    time.sleep(1)
    assert first.poll() is None, "judged before the log was read to its end"
    other = start(run, "run", rank=1)
    for process in (first, other):
        process.communicate(timeout=30)
    assert (first.returncode, other.returncode, outcome(run)["kind"], outcome(run)["step"]) == (0, 0, "completed", 3)


def test_nan_is_not_tried_again(run: Path) -> None:
    process = start(run, "nan")
    process.communicate(timeout=30)
    assert process.returncode == 76
    assert outcome(run)["kind"] == "numeric_error"
    assert "found NaN" in outcome(run)["reason"]


def test_a_crash_is_the_job_script_s_to_settle(run: Path) -> None:
    process = start(run, "crash")
    process.communicate(timeout=30)
    assert process.returncode == 9
    assert not (run / "attempts/000/outcome.json").exists()


def test_a_missing_engine_is_one_sentence(run: Path) -> None:
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("2")
    process = start(run, "run", home="nowhere")
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 76
    assert (outcome(run)["kind"], outcome(run)["step"], outcome(run)["last_saved_step"]) == ("config_error", 2, 2)
    assert b"a container with Megatron-LM (cluster file: container; to import one: enroot import" in out
    assert b"or MEGATRON_LM set to its checkout" in out
    assert b"Traceback" not in out


# Lines in the form of Lightning's and NeMo-Aligner's progress bars and of NeMo 2's progress printer, and what they say.
LINES = (
    (
        CPT_LOG,
        0,
        "Epoch 0: :  10%|1| 10/100 [00:20<03:00, reduced_train_loss=9.010, global_step=9.000, consumed_samples=80.00, "
        "train_step_timing in s=1.250]",
        {"step": 10, "loss": 9.01, "step_time_s": 1.25},
    ),
    (
        ALIGNER_LOG,
        1,
        "Training steps:   0%|          | 12/7142 [01:00<99:00, 5.00s/it, train_loss=0.693, train_grad_norm=1.5, "
        "train_lr=3e-8, train_consumed_samples=1.68e+3, train_step_time=4.5, train_epoch=1]",
        {"step": 12, "loss": 0.693, "lr": 3e-8, "grad_norm": 1.5, "step_time_s": 4.5},
    ),
    (
        NEMO2_LOG,
        0,
        "Training epoch 0, iteration 9/99 | lr: 1.2e-06 | global_batch_size: 8 | global_step: 9 | reduced_train_loss: "
        "10.91 | train_step_timing in s: 0.5178 | consumed_samples: 80",
        {"step": 10, "loss": 10.91, "lr": 1.2e-6, "step_time_s": 0.5178},
    ),
)


@pytest.mark.parametrize(("log", "first", "line", "says"), LINES)
def test_a_row_of_each_log(log: Any, first: int, line: str, says: dict[str, float]) -> None:
    keys = {key: re.compile(pattern) for key, pattern in log["train"].items()}
    assert row_of(line, keys, {"scales": {}, "first_step": first}) == says
    assert row_of("a line of something else", keys, {"scales": {}, "first_step": first}) is None
