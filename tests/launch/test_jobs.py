"""Jobs of run folders where a Slurm answers late; its answers come from a script."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from colosseum.bundle import SLURM_SCRIPT
from colosseum.launch.runs.jobs import jobs_of
from colosseum.rundir import RunDir

SQUEUE = """#!/bin/sh
case "$*" in *--me*) echo '{"jobs": []}'; exit;; esac
sleep 1
echo '{"kind": "completed", "retry": false, "step": 20}' > RUN/attempts/000/outcome.json
echo '{"jobs": [{"job_id": 7, "job_state": "COMPLETED"}]}'
"""
"""The job ends while Slurm is asked: it was running when its folder was read."""


def test_a_job_that_ends_while_it_is_looked_at_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path / "run")
    run.bundle.mkdir(parents=True)
    (run.bundle / SLURM_SCRIPT).touch()
    now = time.time()
    line = {"time_unix_s": now, "scheduler": "slurm", "job_id": "7", "argv": []}
    run.submissions.write_text(json.dumps(line) + "\n")
    run.attempt(0).root.mkdir(parents=True)
    begun = {"attempt": 0, "saved_step": 0, "job_id": "7", "restart": 0, "nodes": "n1", "time_unix_s": now}
    run.attempt(0).env.write_text(json.dumps(begun))
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text(SQUEUE.replace("RUN", str(run.root)))
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    (job,), warnings = jobs_of([run])
    assert (job.word, job.why, warnings) == ("complete", "", [])
