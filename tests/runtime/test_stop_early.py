"""A request to stop is heard while rows are tokenised and while the reference's log-probs are computed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from colosseum.bundle import write_bundle
from colosseum.launch.runs.submit import prepare
from colosseum.rundir import RunDir
from tests.runtime import tiny_align
from tests.runtime.tiny_align import DPO

PART_BYTES = 1 << 24
"""Of a file that is tokenised in processes of their own there are several."""


def test_tokenising_and_the_reference_pass_are_left_at_once(tmp_path: Path) -> None:
    tiny_align.write_data(tmp_path)
    pairs, large = tmp_path / "dpo-train.jsonl", tmp_path / "large.jsonl"
    few = pairs.read_bytes()
    large.write_bytes(few * (2 * PART_BYTES // len(few) + 1))
    pairs.write_bytes(few * 50)
    recipe = tiny_align.aligned(tiny_align.on("one"), tmp_path, DPO)
    data = recipe.data.model_copy(update={"train": str(large)})
    whole = recipe.model_copy(update={"data": data})
    for name, what, begun in (
        ("tokenising", whole, lambda run: next(run.data_cache.glob("large-*.parts"), None)),
        ("reference", recipe, lambda run: next(run.data_cache.glob("dpo-validation-*/cache.json"), None)),
    ):
        run = RunDir(tmp_path / name)
        run.root.mkdir()
        compiled = prepare(what, tmp_path)
        write_bundle(run.bundle, compiled.files, compiled.manifest)
        _stopped(run, begun)
        assert not run.references.exists()


def _stopped(run: RunDir, begun: Callable[[RunDir], Path | None]) -> None:
    """Starts the run's one rank, asks it to stop once it has ``begun``, and looks for what it leaves."""
    command = [sys.executable, "-m", "colosseum.runtime", "bundle"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    rank = subprocess.Popen(command, cwd=run.root, env=env, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not begun(run) and rank.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        rank.send_signal(signal.SIGTERM)
        assert rank.wait(10) == 75
        outcome = json.loads(run.attempt(0).outcome.read_text())
        assert (outcome["kind"], outcome["retry"], outcome["step"]) == ("saved", True, 0)
        assert outcome["reason"] == "stopped on request before the first step"
        deadline = time.monotonic() + 30
        while _session(rank.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert _session(rank.pid) == [], "processes that tokenise end with their rank"
    finally:
        for process in _session(rank.pid):
            os.kill(process, signal.SIGKILL)


def _session(leader: int) -> list[int]:
    """Processes of the session that ``leader`` began."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:  # gone
            continue
        if int(session) == leader and state != "Z":
            found.append(int(folder.name))
    return found
