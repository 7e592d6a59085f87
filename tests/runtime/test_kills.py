"""Kills of CPT, SFT and DPO runs inside a save, a validation or a load, at a random moment and of a random rank."""

from __future__ import annotations

import ctypes
import os
import random
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from colosseum.checkpoint.folders import is_committed, newest_committed
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, checkpoint_folder, read_lines
from tests.runtime import tiny, tiny_align
from tests.runtime.conftest import Place
from tests.runtime.test_runs import SHALLOW, processes_of
from tests.runtime.worlds import losses

RANKS, VALIDATES_EVERY = 2, 3
TEN = ("save",) * 4 + ("validation",) * 3 + ("load",) * 3
TRIES = 2
"""Kills a moment: one that comes after its end does not count, and is made again."""
WAITS_S = 120
IN_OPEN = 0x20
"""Of <sys/inotify.h>."""


def recipe_of(task: str, data: Path, rows: Path, steps: int) -> Recipe:
    """Saved at every step."""
    train = {"steps": steps, "val_every_steps": VALIDATES_EVERY, "val_steps": 10}
    checkpoint = {"every_steps": 1, "keep_last": 3}
    if task == "cpt":
        layout = {"dp": RANKS, "distributed": True, "overlap": True}
        return tiny.on(data, **layout, model=SHALLOW, train=train, checkpoint=checkpoint)
    kind = {"sft": tiny_align.SFT, "dpo": tiny_align.DPO}[task]
    return tiny_align.aligned(
        tiny_align.on("dp2"), rows, {**kind, "packing": True}, model=SHALLOW, train=train, checkpoint=checkpoint
    )


class Opened:
    """Whether any process has opened a file since this was made: the kernel misses none (inotify)."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._watch = libc.inotify_init1(os.O_CLOEXEC)
        assert self._watch >= 0, os.strerror(ctypes.get_errno())
        assert libc.inotify_add_watch(self._watch, os.fsencode(path), IN_OPEN) >= 0, os.strerror(ctypes.get_errno())

    def __call__(self) -> bool:
        return bool(select.select([self._watch], [], [], 0)[0])

    def close(self) -> None:
        os.close(self._watch)


def rows_of(run: RunDir, attempt: int) -> list[dict[str, Any]]:
    return [row for row in read_lines(run.metrics) if row["attempt"] == attempt]


def phase(run: RunDir, attempt: int) -> str:
    """What an attempt is doing, or was when it died, by what it has written."""
    rows = rows_of(run, attempt)
    if not rows:
        return "load"
    steps = [row["step"] for row in rows if row["kind"] == "train"]
    if not steps:
        return "step"
    folder = checkpoint_folder(run.checkpoints, steps[-1])
    if not is_committed(folder):
        return "save" if folder.exists() else "step"
    due = steps[-1] % VALIDATES_EVERY == 0
    return "validation" if due and steps[-1] not in validations(run, attempt) else "step"


def validations(run: RunDir, attempt: int | None = None) -> dict[int, float]:
    """Loss by step."""
    rows = read_lines(run.metrics) if attempt is None else rows_of(run, attempt)
    return {row["step"]: row["loss"] for row in rows if row["kind"] == "val"}


def in_random_order(moments: tuple[str, ...], rng: random.Random) -> list[str]:
    """The first attempt has nothing to load."""
    order = list(moments)
    rng.shuffle(order)
    first = next(i for i, moment in enumerate(order) if moment != "load")
    order[0], order[first] = order[first], order[0]
    return order


def wait_until(process: subprocess.Popen[str], what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAITS_S
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the moment did not come"
        time.sleep(0.001)


def killed(run: RunDir, process: subprocess.Popen[str], moment: str, attempt: int, delay_s: float, rank: int) -> None:
    """Ends a rank so long after the beginning of a moment."""
    if moment == "load":
        # Begins with the check of the files; what starts the ranks reads none of them.
        opened = Opened(checkpoint_folder(run.checkpoints, newest_committed(run.checkpoints) or 0) / "__0_0.distcp")
        wait_until(process, opened)
        opened.close()
    else:
        # Not in the first save: the next attempt may have to load.
        wait_until(process, lambda: phase(run, attempt) == moment and newest_committed(run.checkpoints) is not None)
    time.sleep(delay_s)
    for found in processes_of(run, rank):
        os.kill(found.pid, signal.SIGKILL)


def drill(place: Place, task: str, recipe: str, moments: tuple[str, ...], seed: int) -> None:
    """What was committed is never lost, and the losses and validations are those of a run that was never killed."""
    verb = ("train", "cpt") if task == "cpt" else ("align", task)
    whole = place.end(place.start(recipe, verb=verb))
    assert whole.code == 0, whole.err
    times = {
        kind: median(row["time_s"] for row in read_lines(whole.run.metrics) if row["kind"] == kind)
        for kind in ("save", "val")
    }
    longest_s = {"save": times["save"], "validation": times["val"], "load": times["save"]}
    rng, aimed, hit = random.Random(seed), Counter[str](), Counter[str]()
    interrupted = set()
    process = place.start(recipe, verb=verb)
    wait_until(process, lambda: place.newest() != whole.run and place.newest().attempt(0).env.exists())
    run, left = place.newest(), in_random_order(moments, rng)
    while left:
        moment, attempt = left[0], aimed.total()
        saved = newest_committed(run.checkpoints) or 0
        killed(run, process, moment, attempt, rng.uniform(0, longest_s[moment]), rng.randrange(RANKS))
        ended = place.end(process, run)
        assert (ended.code, ended.outcome["kind"], ended.outcome["retry"]) == (4, "crash", True), ended.err
        was = phase(run, attempt)
        aimed[moment] += 1
        hit[was] += 1
        if was == moment:
            left.pop(0)
        assert aimed.total() <= TRIES * len(moments), f"aimed at {aimed}, hit {hit}"
        if was == "validation":
            interrupted.add(rows_of(run, attempt)[-1]["step"])
        rows = [(row["kind"], row["step"]) for row in rows_of(run, attempt)[:1]]
        assert rows in ([], [("load", saved)] if saved else [("train", 1)]), "it goes on from the last committed step"
        assert (newest_committed(run.checkpoints) or 0) >= saved, "nothing that was saved is lost"
        process = place.start("--from", str(run.root), verb=verb)
    ended = place.end(process, run)
    assert ended.code == 0, ended.err
    assert losses(run.root) == losses(whole.run.root)
    expected = validations(whole.run)
    assert validations(run) == {step: loss for step, loss in expected.items() if step not in interrupted}
    print(f"{task}, seed {seed}: aimed at {dict(aimed)}, hit {dict(hit)}")


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    tiny_align.write_data(folder)
    return folder


def test_a_kill_in_a_save_and_one_in_a_load(place: Place, data: Path, rows: Path) -> None:
    drill(place, "dpo", place.recipe(recipe_of("dpo", data, rows, 6)), ("save", "load"), 7)


@pytest.mark.long
@pytest.mark.parametrize("seed", [2026, 1203])
@pytest.mark.parametrize("task", ["cpt", "sft", "dpo"])
def test_ten_kills(place: Place, data: Path, rows: Path, task: str, seed: int) -> None:
    drill(place, task, place.recipe(recipe_of(task, data, rows, 45)), TEN, seed)
