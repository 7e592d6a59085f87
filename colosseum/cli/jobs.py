"""``colosseum jobs list|status|logs|cancel|requeue|history|sweep``: runs that were started, here or on Slurm."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from colosseum.cli.output import Cluster, Json, Runs, emit, note, say, warn
from colosseum.launch.runs.jobs import LIVE, job_of, jobs_of, pick_run, runs_folder, runs_under
from colosseum.launch.runs.report import attempts_text, job_text, jobs_text
from colosseum.monitor.logs import read_logs
from colosseum.monitor.watch import history as attempts_of
from colosseum.rundir import RunDir
from colosseum.terminal import clean

app = typer.Typer(no_args_is_help=True)
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, its name, or a unique part of its name.")]


@app.callback()
def _group() -> None:
    """Monitor and control started runs."""


@app.command("list")
def list_jobs(
    everything: Annotated[bool, typer.Option("--all", help="Show all ended runs, not only the newest.")] = False,
    cluster: Cluster = None,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """List runs, newest last: state, step, loss, MFU, time left, age of the newest checkpoint."""
    root = runs_folder(runs, cluster)
    jobs, warnings = jobs_of(runs_under(root))
    warn(warnings)
    result = {"schema": "colosseum.jobs/1", "runs": str(root), "jobs": [job.as_json() for job in jobs]}
    emit(as_json, result, lambda: jobs_text(jobs, root, everything=everything))


@app.command()
def status(run: Run, cluster: Cluster = None, runs: Runs = None, as_json: Json = False) -> None:
    """Show the status of one run, with predicted and measured step time."""
    job = job_of(_pick(run, runs, cluster))
    result = {"schema": "colosseum.job/1", **job.as_json()}
    emit(as_json, result, lambda: job_text(job))


@app.command()
def logs(
    run: Run,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the logs until the run ends.")] = False,
    rank: Annotated[
        int, typer.Option("--rank", min=0, help="Rank whose log is shown in addition to the job's log.")
    ] = 0,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=0, help="Attempt of the rank's log. Default: the newest.")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of last lines of each file.")] = 50,
    cluster: Cluster = None,
    runs: Runs = None,
) -> None:
    """Print the logs of the job script and of one rank."""
    place = _pick(run, runs, cluster)
    for text in read_logs(place, rank, attempt, lines, ended_if=_ended if follow else None):
        sys.stdout.write(clean(text))
        sys.stdout.flush()


def _ended(run: RunDir) -> bool:
    return job_of(run).word not in LIVE


@app.command()
def cancel(run: Run, cluster: Cluster = None, runs: Runs = None) -> None:
    """Cancel a run's job and wait for its end. Its ranks save first, within the scheduler's grace time."""
    from colosseum.launch.runs.control import cancel as cancel_run

    place = _pick(run, runs, cluster)
    say(cancel_run(place, note))
    say(f"to resume: colosseum jobs requeue {place.root.name}")


@app.command()
def requeue(run: Run, cluster: Cluster = None, runs: Runs = None) -> None:
    """Restart a run from its newest checkpoint; a running one saves first."""
    from colosseum.launch.runs.control import requeue as requeue_run
    from colosseum.launch.stopwatch import process_start_unix_s

    place = _pick(run, runs, cluster)
    done = requeue_run(place, note, typed_unix_s=process_start_unix_s())
    if done.submission is None:
        say(f"{place.root.name} saves, stops and restarts")
    elif done.in_background:
        say(f"started in the background as job {done.submission.job_id}: colosseum jobs logs -f {place.root.name}")
    else:
        say(f"submitted as job {done.submission.job_id}")


@app.command()
def history(run: Run, cluster: Cluster = None, runs: Runs = None, as_json: Json = False) -> None:
    """List a run's attempts: first and last step, how each ended, lost steps."""
    place = _pick(run, runs, cluster)
    attempts = attempts_of(place)
    result = {"schema": "colosseum.history/1", "run": str(place.root), "attempts": [asdict(a) for a in attempts]}
    emit(as_json, result, lambda: attempts_text(place, attempts))


@app.command()
def sweep(
    name: Annotated[str, typer.Argument(metavar="SWEEP", help="Name of a started sweep, or its folder.")],
    cluster: Cluster = None,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Compare the runs of a sweep, best first: validation loss, else training loss."""
    from colosseum.cli.sweep import show
    from colosseum.launch.trials.sweep import find_sweep

    show(find_sweep(name, runs_folder(runs, cluster)), as_json)


def _pick(name: str, runs: Path | None, cluster: str | None) -> RunDir:
    if "/" in name and (Path(name) / "bundle").is_dir():
        return RunDir(Path(name))
    return pick_run(name, runs_folder(runs, cluster))
