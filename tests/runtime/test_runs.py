"""Runs through the installed command: resumed, forked, and ended by what goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from colosseum.checkpoint.folders import newest_committed, read_metadata
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, checkpoint_folder, latest_rows, read_lines, saved_steps
from tests.runtime import tiny
from tests.runtime.conftest import Ended, Place
from tests.runtime.test_begin import without_a_weight
from tests.runtime.worlds import losses
from tests.traps import set_traps, trapped

SHALLOW = {"num_layers": 2}
OFTEN = {"every_steps": 2, "keep_last": 2}


def on_two_ranks(place: Place, data: Path, steps: int, checkpoint: dict[str, int]) -> str:
    sections = {"train": {"steps": steps}, "checkpoint": checkpoint, "model": SHALLOW}
    return place.recipe(tiny.on(data, dp=2, distributed=True, overlap=True, **sections))


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Ended:
    """Eighteen steps on two ranks that nothing disturbs."""
    place = Place(tmp_path_factory.mktemp("whole"))
    ended = place.train(on_two_ranks(place, data, 18, OFTEN))
    assert ended.code == 0, ended.err
    assert ended.outcome["kind"] == "completed"
    return ended


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data: Path) -> RunDir:
    """Eight steps on one rank at a constant rate, saved at 4 and 8; for reading only."""
    place = Place(tmp_path_factory.mktemp("finished"))
    ended = place.train(place.recipe(at_a_constant_rate(data)))
    assert ended.code == 0, ended.err
    return ended.run


def at_a_constant_rate(data: Path, **sections: dict[str, Any]) -> Recipe:
    return tiny.recipe(data, model=SHALLOW, optimizer={"lr_schedule": "constant"}, **sections)


def wait_for_step(place: Place, process: subprocess.Popen[str], step: int) -> RunDir:
    """Until the run that ``process`` begins has a row of that step."""
    before = place.newest()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        run = place.newest()
        if run != before and any(row.get("step", 0) >= step for row in read_lines(run.metrics)):
            return run
        time.sleep(0.02)
    raise AssertionError("no such step within two minutes")


def test_a_stopped_run_comes_back_bit_for_bit(
    never_stopped: Ended, place: Place, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = losses(never_stopped.run.root)
    assert sorted(expected) == list(range(1, 19))
    assert expected[18] < expected[1] - 0.3, "the model learns"

    process = place.start(on_two_ranks(place, data, 18, OFTEN))
    run = wait_for_step(place, process, 3)
    process.send_signal(signal.SIGINT)
    stopped = place.end(process)
    assert stopped.code == 130
    assert stopped.outcome["kind"] == "saved"
    step = stopped.outcome["step"]
    assert stopped.outcome["last_saved_step"] == step < 18
    # A run folder is data, also where PYTHONPATH ends with a colon and so names the folder a program stands in.
    set_traps(run.root)
    monkeypatch.setenv("PYTHONPATH", ":")
    again = place.resume(run)
    assert trapped(run.root) == []
    assert again.code == 0, again.err
    assert again.run.root == run.root
    assert losses(run.root) == expected
    loads = latest_rows(run.metrics, "load")
    assert [row["step"] for row in loads] == [step]
    kept = saved_steps(run.checkpoints)
    assert kept == [16, 18]
    metadata = read_metadata(checkpoint_folder(run.checkpoints, 18))
    assert metadata.consumed_samples == 18 * tiny.GBS
    assert sum(metadata.tokens_by_source.values()) == metadata.consumed_tokens == 18 * tiny.GBS * 64
    share = metadata.tokens_by_source[str(data / "a")] / metadata.consumed_tokens
    assert share == pytest.approx(0.7, abs=0.02)
    ledger = list(read_lines(run.ledger))[-1]
    assert (ledger["step"], ledger["consumed_samples"]) == (18, 18 * tiny.GBS)
    assert any(run.tensorboard.iterdir())
    assert list(place.compiled.rglob("*.so")) == [], "a CPU may have no C++ compiler"


@dataclass(frozen=True)
class RankProcess:
    pid: int

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def processes_of(run: RunDir, rank: int) -> list[RankProcess]:
    """The process of one rank of this run, if it lives."""
    found = []
    for proc in Path("/proc").iterdir():
        if proc.name.isdigit():
            try:
                words = (proc / "environ").read_bytes().split(b"\0")
                command = (proc / "cmdline").read_bytes()
            except OSError:
                continue
            wanted = {f"COLOSSEUM_RUN={run.root}".encode(), f"RANK={rank}".encode()}
            if wanted <= set(words) and b"colosseum.runtime" in command:
                found.append(RankProcess(int(proc.name)))
    return found


def test_a_half_written_checkpoint_is_set_aside(finished: RunDir, place: Place) -> None:
    run = RunDir(place.runs / finished.root.name)
    shutil.copytree(finished.root, run.root)
    # As a crash inside the save of step 8 leaves it: files, and no colosseum.json.
    newest = checkpoint_folder(run.checkpoints, 8)
    (newest / "colosseum.json").unlink()
    run.attempt(0).outcome.unlink()
    again = place.resume(run)
    assert again.code == 0, again.err
    assert saved_steps(run.checkpoints) == [4, 8]
    aside = newest.with_name(newest.name + ".unfinished-1")
    assert (aside / "metadata.json").exists(), "kept, for who wants to look"
    rows = [row["step"] for row in read_lines(run.metrics) if row["attempt"] == 1 and row["kind"] == "train"]
    assert rows == [5, 6, 7, 8]
    assert losses(run.root) == losses(finished.root)


def test_a_failure_inside_a_load_is_at_the_checkpoint_s_step(finished: RunDir, place: Place) -> None:
    run = RunDir(place.runs / finished.root.name)
    shutil.copytree(finished.root, run.root)
    shutil.rmtree(checkpoint_folder(run.checkpoints, 8))
    without_a_weight(checkpoint_folder(run.checkpoints, 4))
    run.attempt(0).outcome.unlink()
    ended = place.resume(run)
    assert "it lacks decoder.final_layernorm.weight" in ended.said
    assert (ended.outcome["step"], ended.outcome["last_saved_step"]) == (4, 4)


def test_a_run_that_is_stopped_while_it_imports_is_saved(place: Place, data: Path) -> None:
    process = place.start(place.recipe(tiny.recipe(data, model=SHALLOW)))
    deadline = time.monotonic() + 60
    while not processes_of(place.newest(), 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    stopped = place.end(process)
    assert (stopped.code, stopped.outcome["kind"]) == (130, "saved"), stopped.err


def test_a_stop_is_heard_inside_a_validation(place: Place, data: Path) -> None:
    sections = {"train": {"steps": 8, "val_every_steps": 2, "val_steps": 100_000}, "checkpoint": {"every_steps": 100}}
    process = place.start(place.recipe(tiny.recipe(data, model=SHALLOW, **sections)))
    run = wait_for_step(place, process, 2)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    stopped = place.end(process, run)
    assert stopped.code == 130
    assert (stopped.outcome["kind"], stopped.outcome["last_saved_step"]) == ("saved", 2), "nothing was due to be saved"
    assert "validation_stopped" in [row["kind"] for row in read_lines(run.events)]
    assert latest_rows(run.metrics, "val") == []


def test_a_fork_with_another_rate(finished: RunDir, place: Place) -> None:
    fork = place.train("--from", f"{finished.root}@4", "optimizer.lr=0.001", "optimizer.min_lr=0.0001")
    assert fork.code == 0, fork.err
    assert fork.run.root.parent == place.runs, "in a folder of its own"
    forked, original = losses(fork.run.root), losses(finished.root)
    assert sorted(forked) == [5, 6, 7, 8]
    assert forked[5] == original[5], "the first step computes its loss before the new rate acts"
    assert forked[8] != original[8]
    manifest = json.loads((fork.run.bundle / "manifest.json").read_text())
    assert manifest["lineage"] == {"run": finished.root.name, "step": 4}
    assert {row["lr"] for row in latest_rows(fork.run.metrics, "train")} == {0.001}


def test_a_fork_with_other_data(finished: RunDir, place: Place, data: Path) -> None:
    blend = f"data.blend=[{{path: {data / 'b'}, weight: 1.0}}]"
    fork = place.train("--from", f"{finished.root}@4", blend, "batch.seq_length=32", "train.steps=6")
    assert fork.code == 0, fork.err
    manifest = json.loads((fork.run.bundle / "manifest.json").read_text())
    assert manifest["lineage"] == {"run": finished.root.name, "step": 4}
    assert "new_data_epoch" in [row["kind"] for row in read_lines(fork.run.events)]
    rows = latest_rows(fork.run.metrics, "train")
    assert [(row["step"], row["consumed_samples"]) for row in rows] == [(5, 8), (6, 16)], "the data restart"
    before = read_metadata(checkpoint_folder(finished.checkpoints, 4)).tokens_by_source
    after = read_metadata(checkpoint_folder(fork.run.checkpoints, 6)).tokens_by_source
    a, b = str(data / "a"), str(data / "b")
    assert after == {a: before[a], b: before[b] + 16 * 32}, "counted over the lineage; the new tokens are all of b"


def test_more_steps_go_on_in_the_same_sample_order(finished: RunDir, place: Place, data: Path) -> None:
    short = place.train(place.recipe(at_a_constant_rate(data, train={"steps": 6})))
    assert short.code == 0, short.err
    longer = place.train("--from", str(short.run.root), "train.steps=8")
    assert longer.code == 0, longer.err
    assert {**losses(short.run.root), **losses(longer.run.root)} == losses(finished.root)


# --- what goes wrong: one sentence, the right exit code, outcome.json -------------------------------------------------


def failed(place: Place, kind: str, *words: str) -> str:
    """A run that ends with this kind of outcome, not to be started again; its sentence."""
    ended = place.train(*words)
    assert ended.code == 4, ended.err
    assert ended.outcome["kind"] == kind
    assert ended.outcome["retry"] is False
    assert "Traceback" not in ended.err
    reason = str(ended.outcome["reason"])
    assert "\n" not in reason
    assert reason in ended.err
    return reason


def test_a_loss_that_is_not_finite(place: Place, data: Path) -> None:
    reason = failed(place, "numeric_error", place.recipe(tiny.recipe(data, model={"init_method_std": 1e18})))
    assert "step 1 is not finite" in reason
    assert "samples 0 to 7" in reason
    assert "rank 0" in reason
    assert "decoder" in reason or "output_layer" in reason or "embedding" in reason


def test_a_truncated_bin(place: Place, data: Path, tmp_path: Path) -> None:
    tiny.write_data(tmp_path)
    whole = (tmp_path / "b.bin").read_bytes()
    (tmp_path / "b.bin").write_bytes(whole[: len(whole) // 2])
    assert "b.bin has" in failed(place, "data_error", place.recipe(tiny.recipe(tmp_path)))


def test_token_ids_of_another_tokenizer(place: Place, data: Path) -> None:
    reason = failed(place, "data_error", place.recipe(tiny.recipe(data, model={"vocab_size": 128})))
    assert "model.vocab_size is 128" in reason
    assert "another tokenizer" in reason


def test_a_checkpoint_of_another_model(finished: RunDir, place: Place) -> None:
    place.runs.mkdir()
    for change, sentence in (
        ("model.num_layers=4", "num_layers 2 (the recipe says 4)"),
        ("model.layernorm_zero_centered_gamma=false", "layernorm_zero_centered_gamma True (the recipe says False)"),
        ("model.gated_linear_unit=true", "gated_linear_unit False (the recipe says True)"),
    ):
        process = place.start("--from", str(finished.root), change, "train.steps=12")
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2, err
        assert sentence in " ".join(err.split())
        assert f"{finished.root.name}/bundle/recipe.yaml]" in "".join(err.split()), "no file that is gone is named"
    assert list(place.runs.iterdir()) == []


def test_missing_inputs_are_refused_before_a_folder_is_made(place: Place, data: Path) -> None:
    sections = {"kind": "tokenizer_json", "path": "/nowhere/tokenizer.json"}
    place.runs.mkdir()
    process = place.start(place.recipe(tiny.recipe(data / "nowhere", tokenizer=sections)))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "tokenizer.path" in err
    assert "data.blend.0.path" in err
    assert list(place.runs.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A file system of 400 MB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_leaves_the_last_good_checkpoint(small_disk: Path, data: Path) -> None:
    place = Place(small_disk)
    recipe = tiny.recipe(data, train={"steps": 60}, checkpoint={"every_steps": 1, "keep_last": None})
    process = place.start(place.recipe(recipe))
    run = wait_for_step(place, process, 1)
    # There was room when the run began; now there is for one or two more checkpoints.
    disk = shutil.disk_usage(small_disk)
    subprocess.run(["mount", "-o", f"remount,size={disk.used + 8_000_000}", str(small_disk)], check=True)
    ended = place.end(process, run)
    assert ended.code == 4, ended.err
    assert "no space is left on the disk" in ended.said
    newest = newest_committed(ended.run.checkpoints)
    assert newest is not None
    read_metadata(checkpoint_folder(ended.run.checkpoints, newest))
    # Room is made by hand, and the run goes on from there.
    for step in saved_steps(ended.run.checkpoints):
        if step != newest:
            subprocess.run(["rm", "-r", str(checkpoint_folder(ended.run.checkpoints, step))], check=True)
    subprocess.run(["mount", "-o", "remount,size=400m", str(small_disk)], check=True)
    again = place.resume(ended.run)
    assert again.code == 0, again.err
    assert next(iter(latest_rows(ended.run.metrics, "load")))["step"] == newest
