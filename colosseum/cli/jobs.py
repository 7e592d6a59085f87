"""``colosseum jobs list|status|logs|cancel|requeue|history|sweep``: runs that were started, here or on Slurm."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colosseum.cli.output import Cluster, Json, Runs, columns, emit, note, say, stdout, warn, wide
from colosseum.launch.runs.jobs import LIVE, Job, job_of, jobs_of, pick_run, runs_folder, runs_under
from colosseum.monitor.logs import Reader, log_files
from colosseum.monitor.watch import Attempt, age_s
from colosseum.monitor.watch import history as attempts_of
from colosseum.rundir import RunDir
from colosseum.terminal import clean
from colosseum.units import format_duration

if TYPE_CHECKING:
    from rich.text import Text

app = typer.Typer(no_args_is_help=True)
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, its name, or a unique part of its name.")]
POLL_S = 1.0
ASK_EVERY_S = 10.0
STYLES = {
    "running": "green",
    "complete": "bold green",
    "failed": "bold red",
    "unreadable": "bold red",
    "cancelled": "yellow",
    "stopped": "yellow",
}


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
    emit(as_json, result, lambda: _show(jobs, root, everything))


def _show(jobs: Sequence[Job], root: Path, everything: bool) -> None:
    if not jobs:
        stdout().print(f"no runs under {root}", markup=False)
        return
    ended = [job for job in jobs if job.word not in LIVE]
    hidden = 0 if everything else max(0, len(ended) - 20)
    shown = [job for job in jobs if job not in ended[:hidden]]
    table = columns(map(_cells, shown), ("run", "job", "state", "step", "loss", "MFU", "left", "saved", ""))
    for column in table.columns[1:-1]:
        column.no_wrap = True
    wide().print(table)
    if hidden:
        stdout().print(f"{hidden} older ended runs are hidden: --all shows them")


@app.command()
def status(run: Run, cluster: Cluster = None, runs: Runs = None, as_json: Json = False) -> None:
    """Show the status of one run, with predicted and measured step time."""
    job = job_of(_pick(run, runs, cluster))
    result = {"schema": "colosseum.job/1", **job.as_json()}
    emit(as_json, result, lambda: wide().print(columns(_facts(job))))


@app.command()
def logs(
    run: Run,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the logs until the run ends.")] = False,
    rank: Annotated[
        int, typer.Option("--rank", min=0, help="Rank whose log is shown in addition to the job's log.")
    ] = 0,
    attempt: Annotated[int | None, typer.Option("--attempt", min=0, help="Default: the newest.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines of each file.")] = 50,
    cluster: Cluster = None,
    runs: Runs = None,
) -> None:
    """Print the logs of the job script and of one rank."""
    place = _pick(run, runs, cluster)
    reader, shown, polled_s = Reader(lines), None, time.monotonic()
    last_look = not follow
    while True:
        for path, text in reader.new(log_files(place, rank, attempt)):
            if path != shown:
                say(f"==> {path.relative_to(place.root)}")
                shown = path
            sys.stdout.write(clean(text))
        sys.stdout.flush()
        if last_look:
            return
        if time.monotonic() - polled_s >= ASK_EVERY_S:
            last_look, polled_s = job_of(place).word not in LIVE, time.monotonic()
        else:
            time.sleep(POLL_S)


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
    emit(as_json, result, lambda: _show_attempts(place, attempts))


def _show_attempts(run: RunDir, attempts: Sequence[Attempt]) -> None:
    if not attempts:
        say(f"{run.root.name} has not been started yet")
        return
    rows = []
    for a in attempts:
        began = "" if a.began_unix_s is None else time.strftime("%m-%d %H:%M:%S", time.gmtime(a.began_unix_s))
        figures = [f"{a.from_step:,}", *("" if n is None else f"{n:,}" for n in (a.last_step, a.lost_steps))]
        ended = (a.kind or "wrote no outcome.json").replace("_", " ")
        rows.append((str(a.number), a.job_id, a.nodes, began, *figures, ended, a.reason))
    headings = ("", "job", "nodes", "started (UTC)", "from", "to", "lost", "ended", "")
    wide().print(columns(rows, headings))


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


def _cells(job: Job) -> Sequence[str | Text]:
    at = job.status
    return (
        job.run.root.name,
        job.submission.job_id,
        _state(job),
        at.steps_text,
        "" if at.loss is None else f"{at.loss:.4f}",
        "" if at.mfu is None else f"{at.mfu:.1%}",
        format_duration(at.left_s) if at.left_s is not None and job.word == "running" else "",
        _saved(job) if job.word in LIVE else (f"{at.saved_step:,}" if at.saved_step else ""),
        job.why,
    )


def _state(job: Job, reason: str = "") -> Text:
    from rich.text import Text

    return Text(job.word + reason, style=STYLES.get(job.word, ""))


def _saved(job: Job) -> str:
    age = age_s(job.status.saved_unix_s)
    return "" if age is None else f"{job.status.saved_step:,}, {format_duration(age)} ago"


def _facts(job: Job) -> list[tuple[str, str | Text]]:
    """Rows of ``jobs status``."""
    at = job.status
    rows: list[tuple[str, str | Text]] = [("run", str(job.run.root))]
    if job.submission.job_id:
        rows.append(("job", f"{job.submission.job_id} ({job.submission.scheduler})"))
    rows.append(("state", _state(job, f": {job.why}" if job.why else "")))
    if job.state.nodes:
        rows.append(("nodes", job.state.nodes))
    if at.step:
        heard = age_s(at.heard_unix_s)
        of = f" of {at.total_steps:,}" if at.total_steps else ""
        rows.append(("step", f"{at.step:,}{of}" + (f", {format_duration(heard)} ago" if heard is not None else "")))
    rows += [("loss", f"{at.loss:.4f}")] if at.loss is not None else []
    if at.step_time_s is not None:
        predicted = at.predicted_step_time_s
        beside = (
            ""
            if predicted is None
            else f" (predicted {predicted:.3g} s, measured/predicted {at.step_time_s / predicted:.2f})"
        )
        rows.append(("step time", f"{at.step_time_s:.3g} s{beside}"))
    rows += [("tokens/s", f"{at.tokens_per_s:,.0f}")] if at.tokens_per_s is not None else []
    rows += [("MFU", f"{at.mfu:.1%}")] if at.mfu is not None else []
    if at.left_s is not None and job.word == "running":
        rows.append(("left", format_duration(at.left_s)))
    rows.append(("saved", _saved(job) or "no checkpoint yet"))
    if job.state.end_unix_s is not None and job.word in ("running", "starting"):
        rows.append(("time limit", f"in {format_duration(max(0.0, job.state.end_unix_s - time.time()))}"))
    if job.attempt is not None and job.attempt.number:
        rows.append(("attempts", f"{job.attempt.number + 1}: colosseum jobs history {job.run.root.name}"))
    return rows
