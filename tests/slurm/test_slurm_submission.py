"""What reaches Slurm: the size of the job, and every text of a recipe as it was written."""

from __future__ import annotations

import getpass
import json
import math
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from colosseum.bundle import SLURM_SCRIPT, write_bundle
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.launch.bundles.compile import compile_bundle
from colosseum.launch.runs import control
from colosseum.launch.runs.jobs import job_of, jobs_of
from colosseum.launch.runs.submit import new_run, start
from colosseum.launch.slurm import commands, job_script
from colosseum.launch.slurm.commands import SlurmScheduler
from colosseum.planning.resolve import apply_layout, resolve
from colosseum.recipe.load import load
from colosseum.recipe.schema import Recipe
from colosseum.records import Owner
from colosseum.rundir import RunDir, latest_rows
from tests.slurm.conftest import DevSlurm
from tests.slurm.runs import log, stand_in_run, submit, until, until_ended, until_step

NASTY = """a'b "c" $(touch pwned) `touch pwned` ${HOME} \\ \\\\ ; & | > < * ? ~ # %j é漢 !"""
SHOW = """
import json, os, pathlib, resource
limits = {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")}
pathlib.Path("seen.json").write_text(json.dumps({"env": dict(os.environ), "limits": limits}))
"""
"""A rank that writes down what it was given."""
RANK = {"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
OURS = {f"COLOSSEUM_{word}" for word in ("RUN", "ATTEMPT", "STOP_AFTER_STEP", "GPUS_PER_NODE", "SCRATCH")}
CACHES = {"TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "HF_DATASETS_CACHE"}
TRACES = {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}
OF_SLURM = re.compile(r"SLURMD?_|SRUN_|PYXIS_STUB_|ENVIRONMENT$|HOSTNAME$|TMPDIR$")


@pytest.fixture(autouse=True)
def _here(slurm: DevSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")


def _run_of(recipe: Recipe, runs: Path, *argv: str) -> RunDir:
    plan = resolve(recipe)
    compiled = compile_bundle(apply_layout(recipe, plan.layout), plan)
    script = job_script.render(compiled.recipe, plan, argv) if argv else compiled.script
    run = new_run(runs, recipe.name)
    write_bundle(run.bundle, {**compiled.files, SLURM_SCRIPT: script.encode()}, compiled.manifest)
    return run


def test_slurm_takes_the_355b_job_and_not_one_node_more(tmp_path: Path) -> None:
    recipe = load("colosseum-355b/cpt-4k-bf16", ["cluster.slurm.partition=full"], cluster="dgx-h100").recipe
    run = _run_of(recipe, tmp_path)
    assert "on nodes g[001-360] in partition full" in SlurmScheduler().check(run, recipe)
    script = run.bundle / SLURM_SCRIPT
    script.write_text(script.read_text().replace("#SBATCH --nodes=360", "#SBATCH --nodes=361"))
    with pytest.raises(RefusedInput, match=r"Node count specification invalid.*colosseum cluster check"):
        SlurmScheduler().check(run, recipe)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("cluster.slurm.partition=nowhere", "set cluster.slurm.partition to one that `sinfo` lists"),
        ("cluster.slurm.constraint=blue", "no node has the feature in cluster.slurm.constraint"),
        ("resources.time_limit=8d", "the partition's limit is shorter than resources.time_limit"),
    ],
)
def test_slurm_refusals_name_the_field(tmp_path: Path, word: str, sentence: str) -> None:
    recipe = load("debug/cpt-4k-bf16", [word], cluster="dev-slurm").recipe
    with pytest.raises(RefusedInput) as refused:
        SlurmScheduler().check(_run_of(recipe, tmp_path), recipe)
    assert sentence in str(refused.value)


@dataclass(frozen=True, slots=True)
class Told:
    """What the rank of a job was given."""

    run: RunDir
    scratch: Path
    submitter: Mapping[str, str]
    """Environment in which the job was submitted."""
    env: Mapping[str, str]
    limits: Mapping[str, tuple[int, int]]
    """Soft and hard, by the name in ``resource``."""


@pytest.fixture(scope="module")
def told(slurm: DevSlurm, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """A job whose every text is hostile, submitted where the site's variables and limits are hostile too."""
    root = tmp_path_factory.mktemp("told")
    scratch = root / "this node's $(touch pwned) disk"
    scratch.mkdir()
    data = load("debug/cpt-4k-bf16", ["hardware=h100-sxm"], cluster="dev-slurm").recipe.as_data()
    data["cluster"]["env"] = {"SITE": NASTY, "HF_HUB_CACHE": "/hub"}
    data["cluster"]["slurm"]["extra"] = [f"--comment={NASTY}"]
    data["cluster"]["container"] = {"image": NASTY, "mounts": [f"/a b:{NASTY}"], "workdir": NASTY}
    data["cluster"]["paths"] |= {"data": f"/{NASTY}", "scratch": str(scratch)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in slurm.env.items():
            patch.setenv(name, value)
        patch.setenv("XDG_CONFIG_HOME", "/nonexistent")
        run = _run_of(Recipe.from_data(data), root / "runs it's $(touch pwned) & more", sys.executable, "-c", SHOW)
        patch.setenv("SLURM_EXPORT_ENV", "NONE")
        patch.setenv("NCCL_DEBUG", "INFO")
        patch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it in a process of tests that imported it
        patch.setenv("OF_THE_SUBMITTER", "inherited")
        submitter = dict(os.environ)
        with _low_limits():
            submit(run)
        assert until_ended(run).word == "complete", log(run)
        return Told(run, scratch, submitter, **json.loads((run.root / "seen.json").read_text()))


@contextmanager
def _low_limits() -> Iterator[None]:
    """Soft limits that Slurm gives a job from the shell that submits it."""
    low = {resource.RLIMIT_NOFILE: 512, resource.RLIMIT_STACK: 4 << 20, resource.RLIMIT_MEMLOCK: 64 << 10}
    before = {kind: resource.getrlimit(kind) for kind in low}
    try:
        for kind, soft in low.items():
            resource.setrlimit(kind, (soft, before[kind][1]))
        yield
    finally:
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)


def test_slurm_gets_every_text_literally(slurm: DevSlurm, told: Told) -> None:
    runs, scratch = told.run.root.parent, told.scratch
    expected = {
        "SITE": NASTY,
        "PYXIS_STUB_CONTAINER_IMAGE": NASTY,
        "PYXIS_STUB_CONTAINER_WORKDIR": NASTY,
        "PYXIS_STUB_CONTAINER_MOUNTS": f"{runs}:{runs},/a b:{NASTY},/{NASTY}:/{NASTY},{scratch}:{scratch}",
    }
    assert {name: told.env.get(name) for name in expected} == expected
    # squeue 22.05 prints all jobs with --json, whatever --jobs says.
    job = job_of(told.run).submission.job_id
    jobs = json.loads(slurm.run("squeue", "--json", "--states=all", f"--jobs={job}").stdout)["jobs"]
    (known,) = [one for one in jobs if str(one["job_id"]) == str(job)]
    assert known["comment"] == NASTY
    assert not list(runs.parent.rglob("pwned"))


def test_slurm_ranks_have_the_limits_that_training_needs(told: Told) -> None:
    """RDMA locks memory, data loaders open many files, and a core file has the size of a rank's memory."""
    wanted = {"RLIMIT_MEMLOCK": math.inf, "RLIMIT_STACK": math.inf, "RLIMIT_NOFILE": 1 << 20}
    for name, value in wanted.items():
        soft, hard = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in told.limits[name])
        assert soft == min(value, hard), name
    assert told.limits["RLIMIT_CORE"] == [0, 0]


def test_slurm_ranks_find_caches_and_traces_where_the_cluster_file_says(told: Told) -> None:
    caches = told.scratch / f"colosseum-{getpass.getuser()}"
    traces = str(told.run.attempt(0).nccl_traces)
    expected = {
        "NCCL_DEBUG": "WARN",  # not the submitter's
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "CUDA_CACHE_PATH": str(caches / "cuda"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "HF_DATASETS_CACHE": str(caches / "hf-datasets"),
        "HF_HUB_CACHE": "/hub",  # the cluster file's own
        "TORCH_FR_DUMP_TEMP_FILE": traces,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": traces,
    }
    assert {name: told.env.get(name) for name in expected} == expected
    assert oct(caches.stat().st_mode) == "0o40700"
    assert Path(traces).parent.is_dir()


def test_slurm_ranks_inherit_the_submitter_and_nothing_of_the_script(told: Told) -> None:
    """Also where the site's SLURM_EXPORT_ENV would withhold it."""
    assert told.env["OF_THE_SUBMITTER"] == "inherited"
    assert told.submitter.keys() - told.env.keys() <= {"_", "PS1", "SLURM_EXPORT_ENV"}  # a shell's own, and srun's
    new = {name for name in told.env.keys() - told.submitter.keys() if not OF_SLURM.match(name)}
    script = (told.run.bundle / SLURM_SCRIPT).read_text()
    settings = script.partition("\nsettings=(\n")[2].partition("\n)\n")[0]
    assert new - set(re.findall(r"^  '?(\w+)=", settings, re.MULTILINE)) == RANK | OURS | CACHES | TRACES


def test_a_secret_by_reference_reaches_the_ranks_or_stops_the_job(
    slurm: DevSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load("debug/cpt-4k-bf16", ["cluster.env_from=[SITE]"], cluster="dev-slurm").recipe
    run = _run_of(recipe, tmp_path, sys.executable, "-c", SHOW)
    monkeypatch.delenv("SITE", raising=False)
    with pytest.raises(RefusedInput, match="is not set: export it"):
        start(run, recipe, SlurmScheduler())
    run.logs.mkdir()  # `start` makes it, and refused
    slurm.submit(run.root, f"--chdir={run.root}", "bundle/job.sbatch")
    outcome = until(lambda: run.attempt(0).read_outcome())
    assert (outcome.kind, outcome.retry) == ("config_error", False)
    assert outcome.reason.startswith("variable SITE (cluster file: env_from) is not set")
    again = _run_of(recipe, tmp_path, sys.executable, "-c", SHOW)
    monkeypatch.setenv("SITE", NASTY)
    start(again, recipe, SlurmScheduler())
    assert until_ended(again).word == "complete"
    assert json.loads((again.root / "seen.json").read_text())["env"]["SITE"] == NASTY
    assert NASTY not in (again.bundle / SLURM_SCRIPT).read_text()


def test_all_that_a_job_leaves_has_the_modes_of_the_cluster_file(tmp_path: Path) -> None:
    """The job's log, which Slurm makes, and what job script and ranks write: nothing is for others."""
    before = os.umask(0)
    try:
        run = stand_in_run(tmp_path, "modes", "train.steps=2", "optimizer.warmup_steps=0")
        submit(run)
    finally:
        os.umask(before)
    assert until_ended(run).word == "complete"
    names = {p.name: p for p in run.root.rglob("*") if not p.is_symlink()}
    assert {"metrics.jsonl", "rank-00000.log", "outcome.json", "env.json", "submissions.jsonl"} <= names.keys()
    assert {name: oct(p.stat().st_mode) for name, p in names.items() if p.stat().st_mode & 0o027} == {}
    assert all(p.stat().st_mode & 0o040 for p in names.values())


def test_slurm_job_without_python3_says_so_before_any_rank(tmp_path: Path) -> None:
    run = stand_in_run(tmp_path, "no-python3")
    some = tmp_path / "bin"
    some.mkdir()
    for name in ("bash", "date", "hostname"):
        (some / name).symlink_to(shutil.which(name) or "")
    script = run.bundle / SLURM_SCRIPT
    script.write_text(script.read_text().replace("set -uo pipefail\n", f"set -uo pipefail\nPATH={some}\n", 1))
    SlurmScheduler().submit(run)
    (line,) = until(lambda: log(run).splitlines() if run.logs.exists() else None)
    assert line.endswith("has no python3 (3.6 or later), with which this script reads and writes the run's records")
    assert not run.attempts.exists()


def test_slurm_second_job_of_a_run_that_lives_touches_nothing(tmp_path: Path) -> None:
    run = stand_in_run(tmp_path, "owned")
    first = submit(run)
    until(lambda: run.attempts.exists() and run.attempt_numbers())
    script = str(run.root / "bundle" / SLURM_SCRIPT)
    done = subprocess.run(["sbatch", f"--chdir={run.root}", script], capture_output=True, text=True, check=True)
    second = done.stdout.split()[-1]
    said = f"stopped: {run.root.name} belongs to job {first}: it is running; nothing was started or changed"
    until(lambda: said in log(run))
    assert run.attempt_numbers() == [0]
    SlurmScheduler().cancel(first)
    until_ended(run)
    third = submit(run)
    until(lambda: run.attempt_numbers() == [0, 1])
    owners = [Owner.from_line(p.read_text()) for p in sorted((run.root / "owners").iterdir())]
    assert [o.slurm_job for o in owners if o] == [first, third] != [first, second]
    SlurmScheduler().cancel(third)


def test_slurm_jobs_submitted_by_hand_are_seen_and_cancelled(tmp_path: Path) -> None:
    run = stand_in_run(tmp_path, "by-hand")
    run.logs.mkdir()

    def by_hand(*options: str) -> str:
        words = ["sbatch", "--parsable", f"--chdir={run.root}", *options, str(run.bundle / SLURM_SCRIPT)]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    waits = by_hand("--hold")
    assert (job_of(run).submission.job_id, job_of(run).word) == (waits, "waiting")
    (waiting,), _ = jobs_of([run, stand_in_run(tmp_path, "never-started")])
    assert (waiting.run, waiting.submission.job_id, waiting.word) == (run, waits, "waiting")
    with pytest.raises(RefusedInput, match=f"job {waits} of {run.root.name} is already waiting to start"):
        control.requeue(run, print)
    runs = by_hand()
    until_step(run, 2)
    job = job_of(run)
    assert (job.submission.job_id, job.word, [one.job_id for one in job.also]) == (runs, "running", [waits])
    (listed,), _ = jobs_of([run])
    assert (listed.submission.job_id, listed.word, [one.job_id for one in listed.also]) == (runs, "running", [waits])
    told: list[str] = []
    said = control.cancel(run, told.append)
    step = latest_rows(run.metrics, "train")[-1]["step"]
    assert said == f"cancelled job {runs} and job {waits} of {run.root.name}: saved at step {step}"
    assert told[0] == "waiting for the ranks to save: 0 s (Slurm kills them after 5 s)"  # dev-slurm's KillWait
    assert {state.phase for state in SlurmScheduler().states([runs, waits]).values()} == {"cancelled"}
    with pytest.raises(RefusedInput, match="nothing to cancel"):
        control.cancel(run, print)
    assert not run.submissions.exists()


def test_slurm_of_two_requeues_at_once_one_is_submitted(tmp_path: Path) -> None:
    run = stand_in_run(tmp_path, "both")
    SlurmScheduler().cancel(submit(run))
    until_ended(run)
    command = [Path(sys.executable).parent / "colosseum", "jobs", "requeue", str(run.root)]
    for turn in range(3):
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        said = [process.communicate(timeout=120) for process in both]
        assert sorted(process.returncode for process in both) == [0, 2], said
        assert len(run.submissions.read_text().splitlines()) == turn + 2
        control.cancel(run, print)


def test_slurm_is_asked_for_all_jobs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [stand_in_run(tmp_path, f"one-of-{i}") for i in range(3)]
    ids = [submit(run) for run in runs]
    asked = []
    call = commands.call
    monkeypatch.setattr(commands, "call", lambda *argv, **options: asked.append(argv[0]) or call(*argv, **options))
    found, warnings = jobs_of(runs)
    assert asked == ["squeue", "squeue"], "for those that nobody wrote down, and for those that are known"
    assert [job.state.job_id for job in found] == ids
    assert {job.state.phase for job in found} <= {"waiting", "running"}
    assert warnings == []
    for job in ids:
        SlurmScheduler().cancel(job)


def test_slurm_that_does_not_answer_leaves_what_the_folders_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stand_in_run(tmp_path, "alone")
    SlurmScheduler().cancel(submit(run))
    monkeypatch.setenv("SLURM_CONF", "/nonexistent/slurm.conf")
    (job,), (warning,) = jobs_of([run])
    assert job.state.phase == "unknown" and not job.state.asked
    assert "states are from the run folders only" in warning


def test_slurm_that_does_not_say_what_runs_starts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stand_in_run(tmp_path, "twice")
    job = submit(run)
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "squeue").write_text("#!/bin/sh\necho 'squeue: error: out of order' >&2\nexit 1\n")
    (broken / "squeue").chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{broken}:{os.environ['PATH']}")
        with pytest.raises(EnvironmentFault, match=r"nothing was started because .* squeue .* out of order$"):
            control.requeue(run, print)
    assert len(run.submissions.read_text().splitlines()) == 1
    SlurmScheduler().cancel(job)


def test_slurm_without_sacct_still_knows_what_waits_or_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stand_in_run(tmp_path, "no-sacct")
    job = submit(run)
    some = tmp_path / "bin"
    some.mkdir()
    (some / "squeue").symlink_to(shutil.which("squeue") or "")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(some))
        found = SlurmScheduler().states([job, "999999"])
    assert found[job].phase in ("waiting", "running")
    assert found["999999"].detail == "Slurm has forgotten it"
    SlurmScheduler().cancel(job)
