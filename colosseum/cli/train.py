"""``colosseum train cpt``, and what it shares with ``align``: a recipe is loaded, planned, compiled and started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from colosseum.cli.arguments import OptionalRecipeWords, split_words
from colosseum.cli.dry_run import show
from colosseum.cli.launching import continue_run, launch_new
from colosseum.cli.output import Cluster, Json, Runs
from colosseum.cli.sweep import launch_sweep
from colosseum.errors import RefusedInput
from colosseum.launch.runs.request import Continued, Request, read
from colosseum.launch.stopwatch import part, start_reading
from colosseum.launch.trials.rehearsal import require_rehearsal

Stage = Annotated[
    str | None,
    typer.Option("--stage", metavar="NAME", help="cpt: bf16-4k, expand-16k or fp8; debug: a tiny model on the CPU."),
]
Family = Annotated[
    str | None, typer.Option("--family", metavar="NAME", help="Folder of shipped recipes. Default: colosseum-355b.")
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="RUN[@STEP]",
        help="Start from a run's checkpoint, with the recipe given here or else that run's own. "
        "Without recipe and overrides: resume that run in its own folder.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print plan and job script without starting anything.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="With --dry-run: keep the launch bundle in this new folder.")
]
Shakedown = Annotated[
    bool,
    typer.Option(
        "--shakedown",
        help="Smoke test first: 20 steps on the fewest GPUs that fit, with a save and a resume; then the job.",
    ),
]
Sweep = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        metavar="KEY=A,B,C",
        help="One run per value, as one job array; repeat --sweep to run every combination. `colosseum jobs sweep` "
        "compares them.",
    ),
]
AtOnce = Annotated[
    int | None,
    typer.Option(
        "--at-once",
        metavar="K",
        min=1,
        help="Number of runs of a --sweep at the same time. Default: no limit on Slurm; 1 on this machine.",
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Refuse what the engine would leave out of the recipe, instead of a warning."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print on stderr how long each part took.")]

RehearseFirst = Annotated[
    bool,
    typer.Option("--rehearse-first", help="Start only if `colosseum rehearse` has passed with the same recipe."),
]

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _train() -> None:
    """Continue pretraining a model."""


def command_of(kind: str) -> Callable[..., None]:
    """The command that trains a task."""

    def command(
        words: OptionalRecipeWords = None,
        stage: Stage = None,
        family: Family = None,
        source: From = None,
        cluster: Cluster = None,
        dry_run: DryRun = False,
        out: Out = None,
        shakedown: Shakedown = False,
        rehearse_first: RehearseFirst = False,
        sweep: Sweep = None,
        at_once: AtOnce = None,
        strict: Strict = False,
        verbose: Verbose = False,
        runs: Runs = None,
        as_json: Json = False,
    ) -> None:
        recipe, overrides = split_words(words)
        request = Request(
            kind=kind,
            recipe=recipe,
            overrides=tuple(overrides),
            stage=stage,
            family=family,
            source=source,
            cluster=cluster,
            runs=runs,
            strict=strict,
        )
        start_reading(verbose)
        if sweep:
            if out is not None or shakedown or rehearse_first:
                raise RefusedInput("--sweep cannot be combined with --out, --shakedown or --rehearse-first")
            launch_sweep(request, sweep, at_once, as_json, dry_run=dry_run)
            return
        if at_once is not None:
            raise RefusedInput("--at-once needs --sweep")
        _run(request, dry_run, out, shakedown, rehearse_first, as_json)

    return command


app.command("cpt", help="Continue pretraining on a blend of token streams.")(command_of("cpt"))


def _run(
    request: Request, dry_run: bool, out: Path | None, shakedown: bool, rehearse_first: bool, as_json: bool
) -> None:
    if out is not None and not dry_run:
        raise RefusedInput("--out needs --dry-run; a launch keeps its bundle in the run folder")
    with part("compile"):
        prepared = read(request, Path.cwd())
    if dry_run:
        if isinstance(prepared, Continued):
            raise RefusedInput("--dry-run cannot be combined with resuming a run: it keeps its bundle and plan")
        show(prepared, out, as_json)
        return
    if isinstance(prepared, Continued):
        if shakedown:
            raise RefusedInput("--shakedown cannot be combined with resuming a run")
        continue_run(prepared, as_json)
    else:
        if rehearse_first:
            require_rehearsal(prepared.compiled.recipe, prepared.runs, shown=prepared.shown)
        launch_new(prepared, as_json, shakedown=shakedown)
