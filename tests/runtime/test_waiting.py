"""A rank that waits for the others before the first step hears a request to stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colosseum.bundle import write_bundle
from colosseum.launch.runs.submit import prepare
from colosseum.rundir import RunDir
from tests.runtime import tiny
from tests.runtime.conftest import Place


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_rank_whose_neighbours_never_come_leaves_at_once(place: Place, data: Path, number: signal.Signals) -> None:
    run = RunDir(place.runs / "alone")
    run.root.mkdir(parents=True)
    compiled = prepare(tiny.on(data, dp=2), place.folder)
    write_bundle(run.bundle, compiled.files, compiled.manifest)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    env = {**os.environ, **ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    rank = subprocess.Popen([sys.executable, "-m", "colosseum.runtime", "bundle"], cwd=run.root, env=env)
    try:
        deadline = time.monotonic() + 60
        while not _listens(port) and time.monotonic() < deadline:  # rank 0 holds the store: it waits for rank 1
            time.sleep(0.1)
        time.sleep(0.3)
        rank.send_signal(number)
        assert rank.wait(5) == 75
    finally:
        rank.kill()
    outcome = json.loads(run.attempt(0).outcome.read_text())
    assert (outcome["kind"], outcome["retry"]) == ("saved", True)
    assert outcome["reason"] == "stopped on request before the first step"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
