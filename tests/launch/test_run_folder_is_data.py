"""A run folder is data: whoever starts something in one imports nothing of it.

A resumed run, and the job script, are in tests/runtime/test_runs.py and tests/slurm: their folders have the same traps.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from colosseum.bundle import LOCAL_SCRIPT, SLURM_SCRIPT, write_bundle
from colosseum.launch.campaigns.start import GATE_COMMAND
from colosseum.launch.runs.submit import prepare
from colosseum.launch.slurm.commands import job_environment
from colosseum.recipe.load import load
from colosseum.rundir import RunDir
from tests.traps import set_traps, trapped


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    set_traps(tmp_path)
    return RunDir(tmp_path)


def written(run: RunDir, name: str, *words: str, cluster: str) -> None:
    compiled = prepare(load(name, words, cluster=cluster).recipe, run.root)
    write_bundle(run.bundle, compiled.files, compiled.manifest)


def started(run: RunDir, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A program in the run folder, as a job or this machine starts it."""
    env = {**job_environment(), "RANK": "0", **env}
    return subprocess.run(argv, cwd=run.root, env=env, capture_output=True, text=True, timeout=60)


def test_a_trap_catches_who_imports_carelessly(run: RunDir) -> None:
    started(run, "python", "-m", "json.tool", "--help")
    assert "json" in trapped(run.root)
    before = len(trapped(run.root))
    started(run, "python", "-P", "-m", "json.tool", "--help", PYTHONPATH="/elsewhere:")
    assert len(trapped(run.root)) > before, "-P alone does not help there"


def test_launch_sh(run: RunDir) -> None:
    written(run, "debug/cpt-4k-bf16", cluster="local")
    run.attempt(0).root.mkdir(parents=True)
    run.attempt(0).write_outcome("completed", retry=False, step=1, last_saved_step=1, rank=0, reason="")
    done = started(run, "bash", f"bundle/{LOCAL_SCRIPT}", PYTHONPATH="relative:/elsewhere:")
    assert trapped(run.root) == []
    assert (done.returncode, done.stderr) == (0, f"{run.root.name} is complete: nothing to do\n")


def test_the_gate_between_two_stages(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    written(run, "debug/cpt-4k-bf16", cluster="local")
    monkeypatch.setenv("PYTHONPATH", "relative:/elsewhere:")
    done = started(run, "bash", "-c", f"exec {GATE_COMMAND}")
    assert trapped(run.root) == []
    assert done.stdout.startswith(f"fault  {run.root.name} starts from none"), done.stderr


@pytest.mark.parametrize("engine", ["megatron-lm", "nemo1", "nemo2", "bridge"])
def test_ranks_of_another_engine(run: RunDir, engine: str) -> None:
    written(run, "debug-8b/cpt-4k-bf16", f"engine={engine}", "precision.moments_dtype=fp32", cluster="dgx-h100")
    lines = (run.bundle / SLURM_SCRIPT).read_text().splitlines()
    (argv,) = (line for line in lines if line.startswith("argv=("))
    done = started(run, "bash", "-c", f'{argv}; exec "${{argv[@]}}"')
    assert trapped(run.root) == []
    # The engine is not here: start.py says so, or, for one whose script is in the bundle, Python does.
    assert "needs a container with" in done.stderr or "No module named" in done.stdout, done
