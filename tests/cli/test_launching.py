"""Launches on this machine, from the command to the exit code. The ranks run small programs instead of training."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colosseum.bundle import read_bundle, verify_bundle
from colosseum.recipe.source import FromPath, FromRun
from colosseum.rundir import CHECKPOINT_MARK, RunDir, checkpoint_folder, read_lines, saved_steps
from tests.cli.conftest import DATA, Cli, program_bundle

COLOSSEUM = Path(sys.executable).parent / "colosseum"

GOOD = """
import json, os
from pathlib import Path
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print("rank", rank, "of", world, "in", Path.cwd().name, "threads", os.environ["OMP_NUM_THREADS"])
assert Path(os.environ["COLOSSEUM_RUN"]) == Path.cwd() and Path("bundle/recipe.yaml").is_file()
if rank == 0:
    with open("metrics.jsonl", "a") as file:
        for step in (1, 2):
            print(json.dumps({"kind": "train", "step": step, "loss": 3.5, "tokens_per_s": 1000.0}), file=file)
        print(json.dumps({"kind": "save", "step": 2, "bytes": 2048, "time_s": 0.5}), file=file)
"""
BAD = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit("rank 1 met a wall")
time.sleep(600)
"""
QUICK = "import sys; sys.exit(1)"
PATIENT = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
print("ready", flush=True)
time.sleep(600)
"""


def _only_run(runs: Path) -> RunDir:
    (root,) = runs.iterdir()
    return RunDir(root)


def test_a_bundle_runs_to_its_end(cli: Cli, inputs: Path) -> None:
    bundle = program_bundle(inputs / "kept", GOOD, ranks=2, base=inputs)
    done = cli("bundle", "run", str(bundle), "--runs", "here")
    assert done.code == 0, done.err
    run = _only_run(inputs / "here")
    assert verify_bundle(run.bundle) == []
    logs = [run.attempt(0).rank_log(rank).read_text() for rank in (0, 1)]
    assert [log.split(" in ")[0] for log in logs] == ["rank 0 of 2", "rank 1 of 2"]
    outcome = run.attempt(0).read_outcome()
    assert outcome is not None
    assert outcome.kind == "completed"
    (submission,) = read_lines(run.submissions)
    assert submission["scheduler"] == "local"
    assert json.loads(run.attempt(0).env.read_text())["job_id"] == submission["job_id"]
    assert "step      1  loss 3.5000  1,000 tokens/s" in done.out
    assert "step      2  saved  2.0 KiB in 0.5 s" in done.out
    assert done.out.splitlines()[-1].startswith("complete")
    # Nothing is started twice.
    again = cli("train", "cpt", "--from", str(run.root))
    assert again.code == 2
    assert "complete" in again.err


def test_a_failing_rank_ends_the_others_and_is_named(cli: Cli, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = program_bundle(inputs / "kept", BAD, ranks=2, base=inputs)
    script = bundle / "launch.sh"
    monkeypatch.setattr("colosseum.launch.local.ranks.GRACE_S", 0.1)
    assert "colosseum.launch.local.ranks" in script.read_text()
    start = time.monotonic()
    done = cli("bundle", "run", str(bundle), "--runs", "here", "--json")
    assert done.code == 4
    assert time.monotonic() - start < 30
    result = json.loads(done.out)
    assert result["schema"] == "colosseum.run/1"
    assert result["outcome"]["kind"] == "crash"
    assert result["outcome"]["rank"] == 1
    assert "rank 1 met a wall" in done.err
    assert "to retry from step 0: colosseum train cpt --from" in done.err


def test_ctrl_c_lets_the_ranks_save_and_the_run_goes_on(inputs: Path) -> None:
    bundle = program_bundle(inputs / "kept", PATIENT, ranks=2, base=inputs)
    words = ["bundle", "run", str(bundle), "--runs", "here"]
    process = subprocess.Popen(
        [COLOSSEUM, *words], cwd=inputs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not all(_ready(inputs / "here", rank) for rank in (0, 1)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run = _only_run(inputs / "here")
    # A run folder belongs to one launch at a time.
    busy = subprocess.run([COLOSSEUM, "train", "cpt", "--from", str(run.root)], capture_output=True, text=True)
    assert busy.returncode == 2
    assert "ing; nothing was started: `colosseum jobs requeue" in " ".join(busy.stderr.split())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the ranks save and exit" in err
    assert f"to resume: colosseum train cpt --from {Path('here') / run.root.name}" in out
    outcome = run.attempt(0).read_outcome()
    assert outcome is not None
    assert (outcome.kind, outcome.retry) == ("saved", True)
    # The same command line goes on in the same folder, as attempt 1.
    again = subprocess.Popen([COLOSSEUM, "train", "cpt", "--from", str(run.root)], stdout=subprocess.PIPE, text=True)
    logs = [run.attempt(1).rank_log(rank) for rank in (0, 1)]
    while not all(log.exists() and "ready" in log.read_text() for log in logs):
        assert time.monotonic() < deadline + 60
        time.sleep(0.05)
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=60)
    assert again.returncode == 130
    assert run.attempt_numbers() == [0, 1]
    assert len(list(read_lines(run.submissions))) == 2


def _ready(runs: Path, rank: int) -> bool:
    return any("ready" in log.read_text() for log in runs.glob(f"*/attempts/000/rank-{rank:05d}.log"))


def test_all_missing_inputs_come_at_once(cli: Cli, tmp_path: Path) -> None:
    words = ("train", "cpt", "--stage", "debug", "checkpoint.from=run:gone@3")
    faults = json.loads(cli(*words, "--json").out)["faults"]
    assert [f["path"] for f in faults].count("data.blend.0.path") == 2
    assert {"tokenizer.path", "checkpoint.from"} <= {f["path"] for f in faults}
    assert all(f["where"] for f in faults)
    assert not (tmp_path / "runs").exists()
    stage = json.loads(cli("train", "cpt", "debug/cpt-fp8", "--json").out)["faults"]
    assert any("campaign" in f["rule"] for f in stage)


def test_too_large_for_this_machine_is_refused_in_a_sentence(cli: Cli, inputs: Path) -> None:
    done = cli("train", "cpt", "--stage", "bf16-4k", "--json")
    assert done.code == 2
    (fault,) = json.loads(done.out)["faults"]
    assert "needs 2,880 x h100-sxm" in fault["rule"]
    assert "colosseum rehearse colosseum-355b/cpt-4k-bf16" in fault["rule"]
    ranks = cli(
        "train", "cpt", "--stage", "debug", *DATA, "resources.gpus=16", "resources.gpus_per_node=16", "batch.mbs=1"
    )
    assert ranks.code == 2
    assert "needs 16 CPU ranks; at most 8 run on one machine" in ranks.err.replace("\n", " ")


def test_a_machine_without_torch_says_what_to_install(cli: Cli, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *a: None if name == "torch" else find(name, *a))
    done = cli("train", "cpt", "--stage", "debug", *DATA, "--json")
    assert done.code == 3
    assert "pip install '.[train]'" in json.loads(done.out)["message"]
    assert not list((inputs / "runs").iterdir())


def test_a_folder_that_cannot_be_written_is_the_machines_fault(cli: Cli, inputs: Path) -> None:
    (inputs / "file").write_text("")
    done = cli("train", "cpt", "--stage", "debug", *DATA, "--runs", "file/runs")
    assert done.code == 3
    assert "choose another folder with --runs" in " ".join(done.err.split())


@pytest.fixture
def parent(cli: Cli, inputs: Path) -> RunDir:
    """A run with finished checkpoints of steps 2 and 4 and an unfinished one of step 6."""
    run = RunDir(inputs / "runs" / "20260101-000000-program-abcd")
    run.root.mkdir(parents=True)
    program_bundle(run.bundle, GOOD, ranks=1, base=inputs)
    for step in (2, 4, 6):
        checkpoint_folder(run.checkpoints, step).mkdir(parents=True)
        if step < 6:
            (checkpoint_folder(run.checkpoints, step) / CHECKPOINT_MARK).write_text("{}")
    return run


def test_a_fork_has_the_runs_recipe_its_newest_checkpoint_and_a_lineage(cli: Cli, parent: RunDir) -> None:
    name = parent.root.name
    assert cli("train", "cpt", "--from", name, "train.steps=99", "--dry-run", "--out", "fork").code == 0
    fork, old = read_bundle(Path("fork")), read_bundle(parent.bundle)
    assert fork.recipe.checkpoint.source == FromRun(name, 4)
    assert fork.manifest["lineage"] == {"run": name, "step": 4}
    assert fork.recipe.train.steps == 99
    assert fork.recipe.model == old.recipe.model
    assert cli("train", "cpt", "--from", f"{name}@2", "--dry-run", "--out", "second").code == 0
    assert read_bundle(Path("second")).manifest["lineage"]["step"] == 2
    refused = cli("train", "cpt", "--from", f"{name}@6", "--dry-run")
    assert refused.code == 2
    assert "has no checkpoint of step 6; it has 2, 4" in refused.err.replace("\n", " ")


def test_a_fork_takes_a_group_chosen_anew(cli: Cli, parent: RunDir) -> None:
    words = ("train", "cpt", "--from", parent.root.name, "--cluster", "dgx-h100", "optimizer=adam-align")
    assert cli(*words, "--runs", "runs", "--dry-run", "--out", "fork").code == 0
    fork, old = read_bundle(Path("fork")).recipe, read_bundle(parent.bundle).recipe
    assert fork.cluster.name == "dgx-h100"
    assert fork.optimizer.lr != old.optimizer.lr
    assert fork.tokenizer == old.tokenizer


def test_a_fork_takes_no_site_facts_from_the_run(cli: Cli, parent: RunDir) -> None:
    """A run folder may be somebody else's; its cluster file is read again, or must be named."""
    words = ("train", "cpt", "train.steps=99", "--dry-run", "--runs", "runs")
    assert (
        cli(*words, "--from", parent.root.name, "cluster.env.BASH_ENV=touch", "--out", "runs/theirs/bundle").code == 0
    )
    (parent.root.parent / "theirs/checkpoints").symlink_to(parent.checkpoints)
    done = cli(*words, "--from", "theirs", "train.val_steps=1", "--out", "fork")
    assert done.code == 0, done.err
    assert read_bundle(Path("fork")).recipe.cluster.env == {}
    assert "cluster.env of the run differed from cluster local as it is now, which is used" in done.said
    done = cli(*words, "--from", parent.root.name, "cluster.name=elsewhere", "--out", "runs/moved/bundle")
    (parent.root.parent / "moved/checkpoints").symlink_to(parent.checkpoints)
    refused = cli(*words, "--from", "moved", "train.val_steps=1")
    assert refused.code == 2
    assert "no cluster file on this machine: choose another with --cluster" in refused.said


def test_a_named_recipe_begins_from_a_runs_checkpoint(cli: Cli, parent: RunDir) -> None:
    words = ("train", "cpt", "debug/cpt-fp8", "--from", str(parent.root), *DATA)
    assert cli(*words, "--runs", "elsewhere", "--dry-run", "--out", "next").code == 0
    recipe = read_bundle(Path("next")).recipe
    assert recipe.name == "debug-cpt-fp8"
    assert recipe.checkpoint.source == FromPath(str(checkpoint_folder(parent.checkpoints, 4)))
    twice = cli(*words, "checkpoint.from=none", "--dry-run")
    assert twice.code == 2


def test_two_launches_side_by_side(inputs: Path) -> None:
    bundle = program_bundle(inputs / "kept", GOOD, ranks=1, base=inputs)
    words = [COLOSSEUM, "bundle", "run", str(bundle), "--runs", str(inputs / "here")]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    assert [p.communicate(timeout=30)[0].splitlines()[-1][:8] for p in both] == ["complete"] * 2
    assert len(list((inputs / "here").iterdir())) == 2
    assert os.path.isdir(inputs / "here")  # noqa: PTH112


def test_a_bundle_whose_script_was_changed_does_not_run(cli: Cli, inputs: Path) -> None:
    """Also with the sum of the script written anew, and nothing is made."""
    bundle = program_bundle(inputs / "kept", GOOD, ranks=1, base=inputs)
    script, manifest = bundle / "launch.sh", json.loads((bundle / "manifest.json").read_text())
    script.write_text(script.read_text().replace("set -euo pipefail\n", "set -euo pipefail\ntouch hit\n"))
    manifest["files"]["launch.sh"] = hashlib.sha256(script.read_bytes()).hexdigest()
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    for verb in ("run", "verify"):
        done = cli("bundle", verb, "kept")
        assert done.code == 2
        assert "launch.sh differs from what its recipe and plan give" in done.said
    assert not (inputs / "runs").exists()


def test_a_secret_by_reference_reaches_the_ranks_and_nothing_else(
    cli: Cli, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``cluster.env_from`` names it; the bundle, the folder and the command line of no process hold its value."""
    show = (
        "import os, pathlib; it = os.environ['WANDB_API_KEY']; import subprocess\n"
        "assert it not in subprocess.run(['ps', 'axww'], capture_output=True, text=True).stdout\n"
        "print(len(it))"
    )
    bundle = program_bundle(inputs / "kept", show, ranks=1, base=inputs, more=["cluster.env_from=[WANDB_API_KEY]"])
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    done = cli("bundle", "run", str(bundle), "--runs", "here")
    assert done.code == 2
    assert "cluster.env_from = WANDB_API_KEY: is not set: export it, then submit again" in done.said
    assert not (inputs / "here").exists()
    by_hand = subprocess.run(["bash", bundle / "launch.sh"], capture_output=True, text=True)
    assert by_hand.returncode != 0
    assert "WANDB_API_KEY: not set: export it" in by_hand.stderr
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t-value")
    assert cli("bundle", "run", str(bundle), "--runs", "here").code == 0
    run = _only_run(inputs / "here")
    assert run.attempt(0).rank_log(0).read_text() == "12\n"
    assert not any(b"s3cr3t-value" in p.read_bytes() for p in run.root.rglob("*") if p.is_file())


SAVES = """
import os
from pathlib import Path
if os.environ["RANK"] == "0":
    (Path("checkpoints") / "iter_0000001").mkdir(parents=True)
    for name in ("metrics.jsonl", "checkpoints/iter_0000001/colosseum.json"):
        Path(name).write_text("{}")
"""


def _modes(root: Path) -> set[tuple[str, int]]:
    """Modes of all folders and files below; scripts count as files."""
    found = {("folder" if p.is_dir() else "file", stat.S_IMODE(p.lstat().st_mode)) for p in root.rglob("*")}
    return {(kind, mode & 0o666 if kind == "file" else mode) for kind, mode in found}


@pytest.mark.parametrize(
    ("umask", "readers", "folder", "file"), [(0o077, "group", 0o750, 0o640), (0o000, "owner", 0o700, 0o600)]
)
def test_all_that_a_run_leaves_has_the_modes_of_its_cluster_file(
    inputs: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, umask: int, readers: str, folder: int, file: int
) -> None:
    """Also what the ranks write and what a second start adds, whatever the umask of who starts it."""
    monkeypatch.setattr("colosseum.monitor.logs.ASK_EVERY_S", 1.0)
    before = os.umask(umask)
    try:
        words = (f"cluster.paths.readable_by={readers}",)
        bundle = program_bundle(inputs / "kept", QUICK, ranks=2, base=inputs, more=words)
        assert cli("bundle", "run", str(bundle), "--runs", "here").code == 4
        run = _only_run(inputs / "here")
        (inputs / "program.py").write_text(SAVES)
        command = [COLOSSEUM, "jobs", "requeue", str(run.root)]
        subprocess.run(command, check=True, capture_output=True)
        assert cli("jobs", "logs", "-f", str(run.root)).code == 0
    finally:
        os.umask(before)
    assert run.attempt_numbers() == [0, 1]
    assert saved_steps(run.checkpoints) == [1]
    assert stat.S_IMODE(run.root.stat().st_mode) == folder
    assert _modes(run.root) == {("folder", folder), ("file", file)}
