"""Real training on a real Slurm, on two nodes: stopped and broken in every way, against a run left alone.

A test here takes a minute or two of two cores, so most are ``long``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from colosseum.data.demo_alignment import write_alignment
from colosseum.launch.runs import control
from colosseum.launch.runs.jobs import job_of
from colosseum.monitor.watch import history
from colosseum.rundir import RunDir, checkpoint_folder, latest_rows, read_lines, saved_steps
from tests.slurm.conftest import DevSlurm
from tests.slurm.runs import (
    batch_shell,
    held,
    is_alive,
    log,
    losses,
    rank_process,
    until,
    until_begun,
    until_ended,
    until_step,
)
from tests.traps import set_traps, trapped

COLOSSEUM = Path(sys.executable).parent / "colosseum"
STEPS, SAVE_EVERY = 24, 6
ENDS_S = 300
SMALL = (
    f"train.steps={STEPS}",
    f"checkpoint.every_steps={SAVE_EVERY}",
    "checkpoint.keep_last=null",
    f"train.val_every_steps={STEPS}",
    "train.val_steps=1",
    "batch.seq_length=64",
    "batch.mbs=4",
)
PAIR = ("resources.gpus=2", "resources.gpus_per_node=1")
"""Two nodes of one rank."""
FOUR = ("resources.gpus=4", "resources.gpus_per_node=2")
"""Two nodes of two ranks."""


@pytest.fixture(scope="module")
def house(slurm: DevSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the demo's data, and Slurm's place in the environment."""
    root = tmp_path_factory.mktemp("house")
    data = root / "data" / "demo"
    data.mkdir(parents=True)
    tokenizer = data / "tokenizer.json"
    subprocess.run([sys.executable, "-m", "colosseum.data.demo_corpus", root / "text"], check=True, capture_output=True)
    texts = sorted((root / "text").glob("*.jsonl"))
    tokenize = [COLOSSEUM, "data", "tokenize"]
    words = [*texts, "--tokenizer", tokenizer, "--train-tokenizer", "2048", "--force"]
    subprocess.run([*tokenize, *words], check=True, capture_output=True, cwd=root)
    for text in texts:
        words = [text, "--tokenizer", tokenizer, "-o", data / text.stem]
        subprocess.run([*tokenize, *words], check=True, capture_output=True, cwd=root)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in slurm.env.items():
            patch.setenv(name, value)
        patch.setenv("COLOSSEUM_RUNS", str(root / "runs"))
        patch.setenv("XDG_CONFIG_HOME", "/nonexistent")
        yield root


def colosseum(house: Path, *words: str) -> str:
    """stdout of a command that must succeed."""
    done = subprocess.run([COLOSSEUM, *words], cwd=house, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def train(house: Path, name: str, *words: str, size: tuple[str, str] = PAIR) -> RunDir:
    """A run submitted by the command itself."""
    return _submitted(house, ("train", "cpt", "--stage", "debug"), name, *size, *words)


def _submitted(house: Path, command: tuple[str, ...], name: str, *words: str) -> RunDir:
    out = colosseum(house, *command, "--cluster", "dev-slurm", f"name={name}", *SMALL, *words)
    run = RunDir(Path(out.partition("\nrun ")[2].partition("\n")[0]))
    set_traps(run.root)  # a run that is started again must import nothing of its folder
    return run


@pytest.fixture(scope="module")
def alone(house: Path) -> RunDir:
    """The run that nothing happens to."""
    run = train(house, "alone")
    assert until_ended(run, ENDS_S).word == "complete", log(run)
    return run


@pytest.fixture(scope="module")
def alone_of_four(house: Path) -> RunDir:
    """The same, of two ranks a node."""
    run = train(house, "alone-of-four", size=FOUR)
    assert until_ended(run, ENDS_S).word == "complete", log(run)
    return run


def assert_as_if_nothing_had_happened(run: RunDir, alone: RunDir) -> None:
    """The loss of every step is the uninterrupted run's, to the last bit, and no attempt began before the last save."""
    assert trapped(run.root) == []
    assert job_of(run).word == "complete", log(run)
    assert losses(run) == losses(alone)
    assert len(losses(run)) == STEPS
    for attempt in history(run)[1:]:
        assert attempt.from_step >= SAVE_EVERY
    val, expected = latest_rows(run.metrics, "val")[-1], latest_rows(alone.metrics, "val")[-1]
    assert val["loss"] == expected["loss"]


def test_slurm_training_is_stopped_and_goes_on(house: Path, alone: RunDir) -> None:
    run = train(house, "stopped")
    until_step(run, SAVE_EVERY + 2)
    with held(run):
        status = colosseum(house, "jobs", "status", run.root.name)
        assert "running" in status
        assert "of 24" in status
        assert "saves, stops and restarts" in colosseum(house, "jobs", "requeue", run.root.name)
        until(lambda: "stop requested" in log(run))
    until_ended(run, ENDS_S)
    assert_as_if_nothing_had_happened(run, alone)
    first, second = history(run)
    assert (first.kind, first.lost_steps, second.kind) == ("saved", 0, "completed")
    told = colosseum(house, "jobs", "history", run.root.name)
    assert "stopped on request at step" in told
    assert "skipped:" not in colosseum(house, "jobs", "logs", run.root.name)


CAMPAIGN = """
name: small
stages:
  - {name: base, recipe: debug/cpt-4k-bf16, overrides: [train.steps=4]}
  - name: fp8
    recipe: debug/cpt-fp8
    overrides: [train.steps=4, batch.seq_length=128, model.num_layers=4, "checkpoint.from=stage:base",
                "checkpoint.load=[weights]"]
  - {name: grown, recipe: debug/cpt-16k-expand, overrides: [train.steps=4, "checkpoint.from=stage:fp8"]}
"""


def test_slurm_campaign_is_chained_and_resumed(house: Path) -> None:
    (house / "small.yaml").write_text(CAMPAIGN)
    command = (
        "campaign",
        "run",
        "small.yaml",
        "--cluster",
        "dev-slurm",
        "train.val_every_steps=4",
        "optimizer.warmup_steps=0",
    )
    assert "submitted: base, fp8, grown" in colosseum(house, *command)
    assert "submitted: nothing" in colosseum(house, *command)
    first, *later = _stages(house)
    control.cancel(RunDir(Path(first["run"])), print)
    until(lambda: {stage["state"] for stage in _stages(house)} == {"cancelled"})
    assert "submitted: base, fp8, grown" in colosseum(house, "campaign", "resume", "small")
    until(lambda: _stages(house)[2]["state"] in ("done", "held", "failed"), 3 * ENDS_S)  # three runs, one by one
    base, fp8, grown = _stages(house)
    assert [base["run"], fp8["run"], grown["run"]] == [stage["run"] for stage in (first, *later)]
    assert (base["state"], base["step"], fp8["state"], fp8["step"]) == ("done", 4, "done", 4)
    assert (grown["state"], grown["step"]) == ("done", 4), grown["reason"]
    assert any(
        "expanded from 4 to 6 layers" in n for n in json.loads(RunDir(Path(grown["run"])).gate.read_text())["notes"]
    )
    gate = RunDir(Path(fp8["run"])).gate
    verdict = json.loads(gate.read_text())
    assert verdict["notes"] == ["seq_length 256 → 128"]
    (ancestor,) = verdict["lineage"]
    assert (ancestor["run"], ancestor["step"]) == (Path(base["run"]).name, 4)
    assert ancestor["consumed_tokens"] == 4 * 16 * 256
    loaded = latest_rows(RunDir(Path(fp8["run"])).metrics, "load")
    assert [row["step"] for row in loaded] == [0]  # weights only: a stage counts its own steps
    changed = subprocess.run(
        [COLOSSEUM, *command, "optimizer.lr=1e-3"], cwd=house, capture_output=True, text=True, timeout=120
    )
    assert changed.returncode == 2
    assert "other stages or overrides" in changed.stderr


@pytest.mark.long
def test_slurm_debug_campaign_goes_through_all_five_stages(house: Path) -> None:
    """As shipped, with few steps: all submitted at once, each after its gate."""
    write_alignment(house / "data" / "demo")
    words = ("train.steps=4", "train.val_every_steps=4", "train.val_steps=1", "optimizer.warmup_steps=0")
    said = colosseum(house, "campaign", "run", "debug", "--cluster", "dev-slurm", *words)
    assert "submitted: bf16-4k, expand-16k, fp8, sft, dpo" in said
    until(lambda: _stages(house, "debug")[4]["state"] in ("done", "held", "failed"), 2 * ENDS_S)
    found = _stages(house, "debug")
    assert [(stage["state"], stage["step"]) for stage in found] == [("done", 4)] * 5, found
    first, *_, last = (RunDir(Path(stage["run"])) for stage in found)
    gate = json.loads(last.gate.read_text())
    assert gate["passed"] and gate["lineage"][0]["run"] == first.root.name and len(gate["lineage"]) == 4


def _stages(house: Path, campaign: str = "small") -> list[dict[str, Any]]:
    stages: list[dict[str, Any]] = json.loads(colosseum(house, "campaign", "status", campaign, "--json"))["stages"]
    return stages


def test_slurm_sweep_is_an_array_whose_points_survive_alone(house: Path, alone: RunDir) -> None:
    fixed = ("--stage", "debug", "--cluster", "dev-slurm", "name=rates", *SMALL, *PAIR)
    command = ("train", "cpt", *fixed, "--sweep", "optimizer.lr=2.0e-3,2.5e-4,1e-3", "--at-once", "2")
    assert "submitted as job array " in colosseum(house, *command)
    assert "submitted: nothing" in colosseum(house, *command)
    first, second, third = sorted(_points(house, "rates"), key=lambda point: point["index"])
    array = first["job_id"].partition("_")[0]
    assert [point["job_id"] for point in (first, second, third)] == [f"{array}_{i}" for i in range(3)]
    killed, asked, last = (RunDir(Path(point["run"])) for point in (first, second, third))
    until(lambda: job_of(last).state.detail == "pending: waits: the limit of its array's running jobs is reached")
    until_step(killed, SAVE_EVERY + 1)
    os.kill(rank_process(killed, 1), signal.SIGKILL)
    until_step(asked, SAVE_EVERY + 1)
    with held(asked):
        assert "saves, stops and restarts" in colosseum(house, "jobs", "requeue", asked.root.name)
        until(lambda: "stop requested" in log(asked))
    for run in (killed, asked, last):
        assert until_ended(run, ENDS_S).word == "complete", log(run)
    assert_as_if_nothing_had_happened(killed, alone)  # the first point is the same recipe
    assert "rank 1 failed on" in log(killed)
    for run, kind in ((killed, "crash"), (asked, "saved")):
        before, after = history(run)
        assert (before.kind, after.kind) == (kind, "completed")
        assert before.job_id == after.job_id == job_of(run).submission.job_id
        assert after.from_step >= SAVE_EVERY
    assert len(history(last)) == 1
    ranked = _points(house, "rates")
    assert sorted(point["val_loss"] for point in ranked) == [point["val_loss"] for point in ranked]
    # The smallest rate learns least in 24 steps.
    assert (ranked[-1]["values"], ranked[-1]["step"]) == ({"optimizer.lr": "2.5e-4"}, STEPS)
    assert colosseum(house, "jobs", "sweep", "rates").split()[:2] == ["optimizer.lr", "state"]


def test_slurm_is_not_needed_for_a_sweep_of_this_machine(house: Path) -> None:
    words = ("train.steps=2", "train.val_every_steps=2", "optimizer.warmup_steps=0", "optimizer.min_lr=0")
    fixed = ("--stage", "debug", "--cluster", "local", "name=here", *SMALL[2:], *words, "resources.gpus=1")
    command = [COLOSSEUM, "train", "cpt", *fixed, "--sweep", "optimizer.lr=1e-5,1e-2", "--at-once", "2", "--json"]
    done = subprocess.run(command, cwd=house, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout)["points"]
    assert [(point["values"], point["state"]) for point in points] == [
        ({"optimizer.lr": rate}, "complete") for rate in ("1e-2", "1e-5")
    ]
    assert points[0]["val_loss"] < points[1]["val_loss"]
    again = subprocess.run(command, cwd=house, capture_output=True, text=True, timeout=120)
    assert json.loads(again.stdout)["points"] == points
    assert "point 0" in done.stderr
    assert "point 0" not in again.stderr


def _points(house: Path, sweep: str) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = json.loads(colosseum(house, "jobs", "sweep", sweep, "--json"))["points"]
    return points


@pytest.mark.long
def test_slurm_shakedown_comes_first(house: Path) -> None:
    full = train(house, "full-job", "--shakedown", "train.steps=2", "optimizer.warmup_steps=0")
    (small,) = (RunDir(p) for p in full.root.parent.glob("*-full-job-shakedown-*"))
    until_ended(full, ENDS_S)
    assert job_of(full).word == "complete"
    first, second = history(small)
    assert (first.kind, first.lost_steps, second.kind, second.last_step) == ("saved", 0, "completed", 20)
    assert (history(full)[0].began_unix_s or 0) > (second.began_unix_s or 0)


@pytest.mark.long
def test_slurm_training_reaches_its_time_limit(house: Path, alone: RunDir) -> None:
    # Two minutes, less the quarter that is kept for saving.
    run = train(house, "limit", "resources.time_limit=2m", "train.steps=4000")
    until_begun(run, 1, ENDS_S)
    control.cancel(run, print)
    first, second = history(run)[:2]
    assert first.kind == "saved", log(run)
    assert first.lost_steps == 0
    assert second.from_step == first.last_step
    assert "stop requested" in log(run)


@pytest.mark.long
@pytest.mark.parametrize("launch", ["srun", "torchrun"])
def test_slurm_training_of_two_ranks_a_node_is_stopped_and_goes_on(
    house: Path, alone_of_four: RunDir, launch: str
) -> None:
    run = train(house, f"four-by-{launch}", f"cluster.slurm.launch={launch}", size=FOUR)
    until_step(run, SAVE_EVERY + 2)
    with held(run, ranks=4):
        control.requeue(run, print)
        until(lambda: "stop requested" in log(run))
    until_ended(run, ENDS_S)
    assert_as_if_nothing_had_happened(run, alone_of_four)
    assert [(a.kind, a.lost_steps) for a in history(run)] == [("saved", 0), ("completed", None)]
    logs = {path.name for path in run.attempt(0).root.glob("*.log")}
    nodes, ranks = {f"node-{n:05d}.log" for n in range(2)}, {f"rank-{n:05d}.log" for n in range(4)}
    assert logs == (ranks if launch == "srun" else nodes)


@pytest.mark.long
def test_slurm_training_is_requeued_by_an_administrator(slurm: DevSlurm, house: Path, alone: RunDir) -> None:
    run = train(house, "requeued")
    until_step(run, SAVE_EVERY + 2)
    slurm.run("scontrol", "requeue", job_of(run).submission.job_id)
    until_step(run, SAVE_EVERY + 3, attempt=1)
    until_ended(run, ENDS_S)
    assert_as_if_nothing_had_happened(run, alone)


@pytest.mark.long
def test_slurm_training_loses_a_node(slurm: DevSlurm, house: Path, alone: RunDir) -> None:
    run = train(house, "node")
    until_step(run, SAVE_EVERY + 2)
    _node_down(slurm, run, lambda: until_step(run, SAVE_EVERY + 3, attempt=1))
    assert_as_if_nothing_had_happened(run, alone)
    assert "Node failure" in log(run)


@pytest.mark.long
def test_slurm_training_loses_a_rank(house: Path, alone: RunDir) -> None:
    run = train(house, "rank")
    until_step(run, SAVE_EVERY + 2)
    os.kill(rank_process(run, 1), signal.SIGKILL)
    until_step(run, SAVE_EVERY + 3, attempt=1)
    until_ended(run, ENDS_S)
    assert_as_if_nothing_had_happened(run, alone)
    assert "rank 1 failed on" in log(run)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_slurm_alignment_loses_a_rank_then_a_node(slurm: DevSlurm, house: Path, kind: str) -> None:
    """The place in the shuffled rows, and of DPO the stored log-probs of the reference, are found again."""
    write_alignment(house / "data" / "demo")
    command = ("align", kind, "--stage", "debug")
    words = ("checkpoint.from=none", "batch.seq_length=128", "task.packing=true")
    alone = _submitted(house, command, f"{kind}-alone", *PAIR, *words)
    assert until_ended(alone, ENDS_S).word == "complete", log(alone)
    run = _submitted(house, command, f"{kind}-killed", *PAIR, *words)
    until_step(run, SAVE_EVERY + 2)
    os.kill(rank_process(run, 1), signal.SIGKILL)
    until_step(run, 2 * SAVE_EVERY + 2, attempt=1)
    _node_down(slurm, run, lambda: until_step(run, 2 * SAVE_EVERY + 3, attempt=2))
    until_ended(run, ENDS_S)
    assert_as_if_nothing_had_happened(run, alone)
    assert len(list(run.references.glob("*.npy"))) == (2 if kind == "dpo" else 0)


def _node_down(slurm: DevSlurm, run: RunDir, then: Callable[[], None]) -> None:
    """The job's second node fails; it comes back after ``then``, and at the end of the job."""
    nodes = slurm.run("scontrol", "show", "hostnames", job_of(run).state.nodes).stdout.split()
    slurm.run("scontrol", "update", f"nodename={nodes[1]}", "state=down", "reason=drill")
    try:
        then()
        until_ended(run, ENDS_S)
    finally:
        slurm.run("scontrol", "update", f"nodename={nodes[1]}", "state=resume", check=False)  # it may be up by itself


@pytest.mark.long
def test_slurm_training_loses_its_batch_shell(house: Path, alone: RunDir) -> None:
    run = train(house, "shell")
    until_step(run, SAVE_EVERY + 2)
    os.kill(batch_shell(run), signal.SIGKILL)
    assert until_ended(run, ENDS_S).word in ("stopped", "failed")
    control.requeue(run, print)
    until_ended(run, ENDS_S)
    assert_as_if_nothing_had_happened(run, alone)
    until(lambda: not is_alive(run), 60)  # also what the killed script had started


@pytest.mark.long
def test_slurm_training_is_cancelled_and_goes_on(house: Path, alone: RunDir) -> None:
    run = train(house, "cancelled")
    until_step(run, SAVE_EVERY + 2)
    with held(run):
        colosseum(house, "jobs", "cancel", run.root.name)
    assert until_ended(run, ENDS_S).word == "cancelled"
    colosseum(house, "jobs", "requeue", run.root.name)
    until_ended(run, ENDS_S)
    assert_as_if_nothing_had_happened(run, alone)


@pytest.mark.long
def test_slurm_training_fills_the_disk(house: Path, alone: RunDir) -> None:
    run = train(house, "full")
    with _disk_of(run.checkpoints, "30m") as resize:
        assert until_ended(run, ENDS_S).word == "failed"
        assert "no space is left" in job_of(run).why
        assert len(history(run)) == 1
        resize("300m")
        colosseum(house, "jobs", "requeue", run.root.name)
        until_ended(run, ENDS_S)
        assert_as_if_nothing_had_happened(run, alone)


@pytest.mark.long
def test_slurm_training_passes_a_damaged_checkpoint_over(house: Path, alone: RunDir) -> None:
    run = train(house, "damaged")
    until_step(run, 2 * SAVE_EVERY + 2)
    with held(run):
        colosseum(house, "jobs", "cancel", run.root.name)
    until_ended(run, ENDS_S)
    newest = checkpoint_folder(run.checkpoints, saved_steps(run.checkpoints)[-1])
    part = next(newest.glob("*.distcp"))
    os.truncate(part, part.stat().st_size // 2)
    colosseum(house, "jobs", "requeue", run.root.name)
    until_ended(run, ENDS_S)
    assert_as_if_nothing_had_happened(run, alone)
    (event,) = (row for row in read_lines(run.events) if row["kind"] == "checkpoint_passed_over")
    assert f"{part.name} has" in event["reason"]
    assert history(run)[1].from_step < event["step"]


@contextmanager
def _disk_of(folder: Path, size: str) -> Iterator[Callable[[str], None]]:
    """A file system of its own at ``folder``; its size can be changed."""
    folder.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "drill", str(folder))
    try:
        yield lambda new: _run("mount", "-o", f"remount,size={new}", str(folder))
    finally:
        _run("umount", str(folder))


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True)
