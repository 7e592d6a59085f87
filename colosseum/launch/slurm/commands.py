"""Slurm's commands: the only file that calls them. What they print is read by ``answers.py``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colosseum.errors import EnvironmentFault, RefusedInput, RunFailed
from colosseum.health.exclude import excluded
from colosseum.launch.schedulers.base import ONE_PROCESS, JobSize, JobState, Submission
from colosseum.launch.slurm import answers
from colosseum.launch.slurm.gpus import gpu_option
from colosseum.launch.stopwatch import part
from colosseum.rundir import RunDir

if TYPE_CHECKING:
    from colosseum.recipe.cluster import Cluster
    from colosseum.recipe.schema import Recipe

# sbatch and its errors when the controller, not the job, is at fault.
_UNREACHABLE = ("Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted", "fatal:")
# scancel, of a job that ends or has ended.
_ENDING = ("Invalid job id", "already completing or completed")
_TIMEOUT_S = 60
JOB_SCRIPT = "bundle/job.sbatch"


def command_environment() -> dict[str, str]:
    """Our environment without an outer job's: SBATCH_PARTITION and its like would win over the script's own options."""
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_CONF_SERVER")
    env = {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_"))
    }
    return env | {"SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}  # 0: the indices of an array in full


def call(*argv: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs one Slurm command; the caller judges its exit code.

    Raises:
        EnvironmentFault: there is no such command, or the controller does not answer.
    """
    if shutil.which(argv[0]) is None:
        raise EnvironmentFault(f"{argv[0]} was not found: run this on a login node of the cluster")
    env = env or command_environment()
    if (conf := env.get("SLURM_CONF")) and not Path(conf).is_file():  # the commands would look for another for a minute
        raise EnvironmentFault(f"SLURM_CONF is {conf}, which does not exist")
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(f"{argv[0]} did not answer within {_TIMEOUT_S} s") from error
    except OSError as error:
        raise EnvironmentFault(f"{argv[0]} could not be run: {error.strerror}") from error
    if done.returncode and any(text in done.stderr for text in _UNREACHABLE):
        raise EnvironmentFault(f"Slurm does not answer: {_last_line(done.stderr)}")
    return done


@dataclass(frozen=True, slots=True)
class SlurmScheduler:
    """The ``Scheduler`` of a Slurm cluster; the controller is found as Slurm's own commands find it."""

    def check(self, run: RunDir, recipe: Recipe) -> str:
        """``sbatch --test-only``: Slurm's check of partition, limits and size; not of the script's commands."""
        return self._check(_sbatch(run.root, JOB_SCRIPT, "--test-only"))

    def submit(self, run: RunDir, *, after: Sequence[str] = ()) -> Submission:
        """``sbatch``, once other jobs have succeeded."""
        # Slurm opens the log before the script runs: without the folder the job fails and says nothing.
        run.logs.mkdir(parents=True, exist_ok=True)
        name = f"--job-name={run.root.resolve().name}"
        argv = _sbatch(run.root, JOB_SCRIPT, "--parsable", name, *_excluded(run.root, JOB_SCRIPT), *_after(after))
        job_id = self._submit(argv)
        return Submission(scheduler="slurm", job_id=job_id, argv=tuple(argv), time_unix_s=time.time())

    def submit_array(self, folder: Path, script: str, count: int, at_once: int | None) -> list[Submission]:
        """One job array, once ``--test-only`` has passed."""
        array = self.array_option(count, at_once)
        self._check(_sbatch(folder, script, "--test-only", array))
        argv = _sbatch(folder, script, "--parsable", array, *_excluded(folder, script))
        job_id, now = self._submit(argv), time.time()
        return [
            Submission(scheduler="slurm", job_id=f"{job_id}_{i}", argv=tuple(argv), time_unix_s=now)
            for i in range(count)
        ]

    def array_option(self, count: int, at_once: int | None) -> str:
        """Indices from 0, of which so many run at the same time (None = no limit)."""
        return f"--array=0-{count - 1}" + (f"%{at_once}" if at_once else "")

    def submit_script(
        self,
        run: RunDir,
        cluster: Cluster,
        name: str,
        command: str,
        *,
        minutes: int,
        after: Sequence[str] = (),
        size: JobSize = ONE_PROCESS,
        array: str = "",
    ) -> str:
        """``sbatch --wrap``, where the cluster's jobs go."""
        run.logs.mkdir(parents=True, exist_ok=True)
        root, slurm = run.root.resolve(), cluster.slurm
        places = [f"--{option}={value}" for option, value in slurm.placement()]
        log = "%A_%a" if array else "%j"
        where = [f"--chdir={root}", f"--output=logs/{name}-{log}.out", f"--job-name={name}-{root.name}"]
        ranks = size.nodes * size.ranks
        if ranks > 1:
            command = f"srun --kill-on-bad-exit=1 {command}"
        options = [f"--nodes={size.nodes}", f"--ntasks={ranks}", f"--ntasks-per-node={size.ranks}"]
        options += [f"--time={minutes}", "--requeue", "--open-mode=append"]
        if size.gpus and (asked := gpu_option(slurm.gpu_request, size.gpus)) is not None:
            options.append(f"--{asked[0]}={asked[1]}")
        if array:
            options.append(f"--array={array}")
        return self._submit(
            ["sbatch", "--parsable", *where, *options, *places, *_after(after), f"--wrap=exec {command}"]
        )

    @staticmethod
    def _check(argv: Sequence[str]) -> str:
        with part("sbatch --test-only"):
            done = call(*argv, env=job_environment())
        if done.returncode:
            raise RefusedInput(f"Slurm refuses this job: {_last_line(done.stderr)}{_hint(done.stderr)}")
        return _last_line(done.stderr)

    @staticmethod
    def _submit(argv: Sequence[str]) -> str:
        with part("sbatch"):
            done = call(*argv, env=job_environment())
        if done.returncode:
            raise RefusedInput(f"Slurm refuses this job: {_last_line(done.stderr)}{_hint(done.stderr)}")
        return done.stdout.strip().split(";")[0]

    def states(self, job_ids: Sequence[str]) -> Mapping[str, JobState]:
        """squeue, and sacct for the jobs that squeue has forgotten; unknown without accounting."""
        if not job_ids:
            return {}
        found = answers.queue(self._squeue(job_ids))
        forgotten = [j for j in job_ids if j not in found]
        if forgotten:
            # It fails where the site keeps no accounts, and where it is older than its --json; some have no sacct.
            with suppress(EnvironmentFault):
                done = call("sacct", "--json", f"--jobs={','.join(forgotten)}")
                found |= answers.accounts(done.stdout) if done.returncode == 0 else {}
        return {
            j: found.get(j) or JobState(job_id=j, phase="unknown", detail="Slurm has forgotten it") for j in job_ids
        }

    def cancel(self, job_id: str) -> None:
        """See ``Queue.cancel``; one that is ending by itself is left to it."""
        try:
            self._must("scancel", job_id)
        except RunFailed as failed:
            if not any(word in str(failed) for word in _ENDING):
                raise

    def grace_s(self) -> float | None:
        """Slurm's KillWait."""
        found = re.search(r"^KillWait\s*=\s*(\d+) sec", call("scontrol", "show", "config").stdout, re.MULTILINE)
        return float(found[1]) if found else None

    def in_folders(self, folders: Collection[Path]) -> Mapping[Path, Sequence[str]]:
        """See ``Queue.in_folders``: by the working folder that Slurm knows, with one query for all."""
        done = call("squeue", "--json", "--me")
        if done.returncode:
            raise EnvironmentFault(f"squeue failed: {_last_line(done.stderr)}")
        found: dict[Path, list[str]] = {folder: [] for folder in folders}
        by_path, script = {folder.resolve(): folder for folder in folders}, f"/{Path(JOB_SCRIPT).name}"
        for name, job in answers.queue(done.stdout).items():
            folder = by_path.get(Path(os.path.realpath(job.folder)))
            if folder is not None and job.phase in ("waiting", "running") and job.script.endswith(script):
                found[folder].append(name)
        return found

    def save_and_restart(self, job_id: str) -> None:
        """The job script passes USR1 on to the ranks and requeues the job once they have saved.

        Raises:
            RefusedInput: the job is just ending.
        """
        try:
            self._must("scancel", "--signal=USR1", "--batch", job_id)
        except RunFailed as failed:
            if not any(word in str(failed) for word in _ENDING):
                raise
            raise RefusedInput(
                f"job {job_id} is just ending: run `colosseum jobs requeue` again in a few seconds"
            ) from failed

    def _squeue(self, job_ids: Sequence[str]) -> str:
        done = call("squeue", "--json", "--states=all", f"--jobs={','.join(job_ids)}")
        if done.returncode:
            # squeue refuses a single id that it has forgotten.
            if "Invalid job id" in done.stderr:
                return '{"jobs": []}'
            raise EnvironmentFault(f"squeue failed: {_last_line(done.stderr)}")
        return done.stdout

    @staticmethod
    def _must(*argv: str) -> None:
        done = call(*argv)
        if done.returncode or "error:" in done.stderr:
            raise RunFailed(f"{' '.join(argv)} failed: {_last_line(done.stderr)}")


def _after(jobs: Sequence[str]) -> list[str]:
    """Starts once these have succeeded; a job that can never start is cancelled instead of waiting forever."""
    return [f"--dependency=afterok:{':'.join(jobs)}", "--kill-on-invalid-dep=yes"] if jobs else []


def _excluded(folder: Path, script: str) -> list[str]:
    """Nodes of the list beside the run folders, with the script's own: the command line's list replaces that."""
    listed = excluded(folder.resolve().parent)
    if not listed:
        return []
    own = re.findall(r"^#SBATCH --exclude=(\S+)", (folder / script).read_text(), re.MULTILINE)
    return [f"--exclude={','.join([*own, *listed])}"]


def _sbatch(folder: Path, script: str, *options: str) -> list[str]:
    root = folder.resolve()
    return ["sbatch", f"--chdir={root}", *options, str(root / script)]


def job_environment() -> dict[str, str]:
    """The environment a job inherits: `python` is the one that runs us, unless the cluster file names another.

    An empty or relative entry of PYTHONPATH would be the run folder there, which is data.
    """
    env = command_environment()
    if path := env.pop("PYTHONPATH", None):
        env["PYTHONPATH"] = os.pathsep.join(entry for entry in path.split(os.pathsep) if Path(entry).is_absolute())
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    return env


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("sbatch: error: ").removeprefix("sbatch: ") if lines else "it gave no reason"


_HINTS = {
    "Node count specification invalid": "; the partition has fewer nodes, see `colosseum cluster check`",
    "invalid partition": "; set cluster.slurm.partition to one that `sinfo` lists",
    "Requested time limit is invalid": "; the partition's limit is shorter than resources.time_limit",
    "Invalid account": "; set cluster.slurm.account to one that `sacctmgr show associations user=$USER` lists",
    "Invalid qos": "; set cluster.slurm.qos to one of your association's",
    "Invalid feature": "; no node has the feature in cluster.slurm.constraint",
    "reservation": "; cluster.slurm.reservation must be one that `scontrol show reservation` lists",
}


def _hint(text: str) -> str:
    return next((hint for key, hint in _HINTS.items() if key in text), "")
