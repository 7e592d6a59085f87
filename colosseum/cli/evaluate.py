"""``colosseum evaluate``: scores of a checkpoint or a Hugging Face folder by lm-evaluation-harness."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colosseum.cli.checkpoint_hf import checkpoint_of, needs_torch
from colosseum.cli.output import Cluster, Json, Runs, columns, emit, note, warn
from colosseum.evaluation.evaluating import evaluate as run_evaluation
from colosseum.evaluation.folder import EvaluationFolder, Result, ScoreRow
from colosseum.evaluation.settings import Backend
from colosseum.evaluation.targets import Wanted, folder_of, request_of
from colosseum.launch.runs.submit import modes_of
from colosseum.launch.schedulers.base import Queue, Scheduler
from colosseum.launch.schedulers.registry import scheduler_of
from colosseum.launch.trials.evaluations import submit
from colosseum.recipe.cluster import Cluster as Site
from colosseum.recipe.load import load_cluster

if TYPE_CHECKING:
    from rich.console import RenderableType

Tasks = Annotated[
    str, typer.Option(metavar="TASK,…", help="Tasks of the harness (lm-eval), or .yaml files of your own.")
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Data sets by their names on the hub (DIR/cais/mmlu). Default: the hub."),
]
FewShot = Annotated[int | None, typer.Option(min=0, help="Examples before each question. Default: the task's own.")]
Chat = Annotated[bool | None, typer.Option("--chat/--no-chat", help="Use the chat template. Default: if it has one.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first items of each task.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of few-shot examples and sampled answers.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Requests per batch.")]
AsTrained = Annotated[
    bool,
    typer.Option("--as-trained", help="Start the checkpoint's TP x PP ranks on this machine. Default: one process."),
]
TrainData = Annotated[
    list[Path] | None,
    typer.Option("--train-data", metavar="PREFIX", help="Look for the questions in these indexed datasets."),
]
TimeLimit = Annotated[str, typer.Option(metavar="DURATION", help="Of the job on a Slurm cluster, such as 90m.")]


def evaluate(
    target: Annotated[
        str, typer.Argument(metavar="RUN[@STEP]|CKPT|HF", help="A run, a checkpoint, or a Hugging Face folder.")
    ],
    tasks: Tasks,
    data: Data = None,
    few_shot: FewShot = None,
    chat: Chat = None,
    limit: Limit = None,
    backend: Annotated[
        Backend | None,
        typer.Option(help="Default: runtime for checkpoints, transformers for Hugging Face folders."),
    ] = None,
    train_data: TrainData = None,
    seed: Seed = 1234,
    batch_size: BatchSize = 8,
    as_trained: AsTrained = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of this evaluation. Default: in RUN/evaluations, else ./evaluations."),
    ] = None,
    time_limit: TimeLimit = "4h",
    runs: Runs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Score a checkpoint or a Hugging Face folder by lm-evaluation-harness, with 95% intervals.

    Run an interrupted command again to continue it. On a Slurm cluster (--cluster) it is a job; the same command shows
    the scores when it has ended.
    """
    folder = checkpoint_of(target, runs, cluster)
    needs_torch()
    wanted = Wanted(
        tasks=tuple(word for word in tasks.split(",") if word),
        data=data,
        few_shot=few_shot,
        chat=chat,
        seed=seed,
        limit=limit,
        backend=backend,
        train_data=tuple(train_data or ()),
        batch_size=batch_size,
        as_trained=as_trained,
    )
    request = request_of(folder, wanted)
    place = folder_of(request, out)
    site = load_cluster(cluster)
    scheduler = scheduler_of(site.scheduler)
    with _modes(place):
        place.begin(request)
        _evaluate(place, site, scheduler, time_limit, as_json)


def _modes(place: EvaluationFolder) -> AbstractContextManager[None]:
    """In a run folder, files are for those whom the run is for."""
    run = place.root.parent.parent
    return modes_of(run) if (run / "bundle").is_dir() else nullcontext()


def _evaluate(place: EvaluationFolder, site: Site, scheduler: Scheduler, time_limit: str, as_json: bool) -> None:
    """Here, or as a job; scores that are there are shown."""
    if place.read() is None and isinstance(scheduler, Queue):
        job = submit(place, site, scheduler, time_limit)
        submitted = {"schema": "colosseum.evaluation-job/1", "job_id": job, "folder": str(place.root)}
        emit(as_json, submitted, lambda: f"submitted as job {job}: give the same command again when it has ended")
        return
    result = run_evaluation(place, note)
    warn(remarks(result))
    emit(as_json, {**result.model_dump(mode="json", by_alias=True), "folder": str(place.root)}, lambda: table(result))


def remarks(result: Result) -> list[str]:
    """What a reader of the scores should know."""
    found = []
    if result.cut:
        found.append(f"{result.cut:,} prompts were longer than the model reads: their beginning was cut off")
    for task, row in result.contamination.items():
        if row["dirty"]:
            clean = row["score_of_clean"]
            score = "" if clean is None else f"; without questions seen in part the score is {clean:.2%}"
            found.append(f"{task}: {row['dirty']:,} of {row['compared']:,} questions are in the training data{score}")
    return found


def table(result: Result) -> list[RenderableType]:
    """The main score of each task and group, with its members, tags and languages."""
    rows = []
    inside = {task for tasks in result.members.values() for task in tasks}
    seen = set()
    for score in result.scores:
        if score.task in seen:
            continue
        seen.add(score.task)
        indent = "  " if score.task in inside else ""
        rows.append((indent + score.task, score.metric, *cells(score)))
        for kind, names in result.parts.get(score.task, {}).items():
            for name, (mean, low, high, count) in names.items():
                part = ScoreRow(task="", metric="", mean=mean, low=low, high=high, count=count)
                rows.append((f"{indent}  {kind} {name}", "", *cells(part)))
    headings = ("task", "metric", "score", "95% interval", "items")
    return [columns(rows, headings), f"settings: {described(result)}"]


def cells(score: ScoreRow) -> tuple[str, str, str]:
    """Score, interval and number of items. A share is shown in percent."""
    if score.low is None or score.high is None:
        return f"{score.mean:.4g}", "", ""
    return f"{score.mean:.2%}", f"{score.low:.2%} to {score.high:.2%}", f"{score.count:,}"


def described(result: Result) -> str:
    """The pinned settings in one line."""
    settings = result.settings
    shots = "the tasks' own examples" if settings.few_shot is None else f"{settings.few_shot}-shot"
    chat = f"chat template {settings.chat_template[:8]}" if settings.chat else "no chat template"
    bos = "BOS" if settings.bos else "no BOS"
    return f"{shots}, {chat}, {bos}, seed {settings.seed}, {settings.backend}, lm-eval {settings.harness}"
