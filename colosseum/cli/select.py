"""``colosseum select``: every checkpoint of a run, or every point of a sweep, evaluated and compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colosseum.cli.checkpoint_hf import needs_torch
from colosseum.cli.evaluate import AsTrained, BatchSize, Chat, Data, FewShot, Limit, Seed, TimeLimit, cells
from colosseum.cli.output import Cluster, Json, Runs, columns, emit, note
from colosseum.evaluation.choosing import candidate, scores_named, write
from colosseum.evaluation.evaluating import evaluate
from colosseum.evaluation.folder import EvaluationFolder, ScoreRow
from colosseum.evaluation.own_tasks import name_of
from colosseum.evaluation.selection import Choice, choose
from colosseum.evaluation.targets import Wanted, folder_of, request_of
from colosseum.launch.runs.jobs import runs_folder
from colosseum.launch.runs.selected import Selected, promote
from colosseum.launch.runs.submit import modes_of
from colosseum.launch.schedulers.base import Queue
from colosseum.launch.schedulers.registry import scheduler_of
from colosseum.launch.trials.candidates import Entries, entries_of
from colosseum.launch.trials.evaluations import submit_array
from colosseum.recipe.cluster import Cluster as Site
from colosseum.recipe.load import load_cluster

if TYPE_CHECKING:
    from rich.console import RenderableType


def select(
    name: Annotated[str, typer.Argument(metavar="RUN|SWEEP", help="Every checkpoint of a run, or point of a sweep.")],
    by: Annotated[
        str,
        typer.Option(metavar="TASK[:METRIC],…", help="Scores that decide, the first one first; further ones on ties."),
    ],
    data: Data = None,
    few_shot: FewShot = None,
    chat: Chat = None,
    limit: Limit = None,
    seed: Seed = 1234,
    batch_size: BatchSize = 8,
    as_trained: AsTrained = False,
    to_promote: Annotated[
        bool, typer.Option("--promote", help="Write the pointer: RUN@selected is then the selected checkpoint.")
    ] = False,
    at_once: Annotated[
        int | None, typer.Option(min=1, help="Jobs of the array at the same time. Default: all.")
    ] = None,
    time_limit: TimeLimit = "4h",
    runs: Runs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Evaluate every checkpoint of a run, or every point of a sweep, and name the best one.

    On a Slurm cluster the evaluations are a job array; give the same command again when it has ended.
    """
    entries = entries_of(name, runs_folder(runs, cluster))
    needs_torch()
    asked = [word.partition(":") for word in by.split(",") if word]
    words = tuple(f"{name_of(task)}{colon}{metric}" for task, colon, metric in asked)
    wanted = Wanted(
        tasks=tuple(dict.fromkeys(task for task, _, _ in asked)),
        data=data,
        few_shot=few_shot,
        chat=chat,
        seed=seed,
        limit=limit,
        batch_size=batch_size,
        as_trained=as_trained,
    )
    with modes_of(entries.folder):
        _select(entries, wanted, words, load_cluster(cluster), time_limit, at_once, to_promote, as_json)


def _select(
    entries: Entries,
    wanted: Wanted,
    words: tuple[str, ...],
    site: Site,
    time_limit: str,
    at_once: int | None,
    to_promote: bool,
    as_json: bool,
) -> None:
    """Evaluates what is not evaluated yet, here or as an array; decides once all is."""
    folders = [_begun(entry.checkpoint, wanted) for entry in entries.entries]
    parent = None if entries.parent is None else _begun(entries.parent, wanted)
    everything = [*folders, *([parent] if parent else [])]
    open_ones = [folder for folder in everything if folder.read() is None]
    scheduler = scheduler_of(site.scheduler)
    if open_ones and isinstance(scheduler, Queue):
        place = entries.folder / "selection"
        job = submit_array(place, open_ones, site, scheduler, time_limit, at_once)
        found: dict[str, Any] = {"schema": "colosseum.selection-jobs/1", "job_id": job, "evaluations": len(open_ones)}
        text = (
            f"submitted as job array {job}: {len(open_ones)} evaluations; give the same command again when it has ended"
        )
        emit(as_json, found, lambda: text)
        return
    for number, folder in enumerate(open_ones, 1):
        note(f"evaluation {number} of {len(open_ones)}: {folder.request().target}")
        evaluate(folder, note)
    _decide(entries, folders, parent, words, to_promote, as_json)


def _begun(checkpoint: Path, wanted: Wanted) -> EvaluationFolder:
    request = request_of(checkpoint, wanted)
    folder = folder_of(request, None)
    folder.begin(request)
    return folder


def _decide(
    entries: Entries,
    folders: list[EvaluationFolder],
    parent_folder: EvaluationFolder | None,
    words: tuple[str, ...],
    to_promote: bool,
    as_json: bool,
) -> None:
    """The table, the picture and the verdict; the pointer if asked for."""
    names = [entry.name for entry in entries.entries]
    results = [
        (n, r) for n, f in zip([*names, "parent"], [*folders, parent_folder], strict=True) if f and (r := f.read())
    ]
    scores = scores_named(words, results[0][1])
    candidates = [
        candidate(entry.name, entry.run, entry.step, folder, scores)
        for entry, folder in zip(entries.entries, folders, strict=True)
    ]
    parent = None if parent_folder is None else candidate("parent", "", 0, parent_folder, scores)
    choice = choose(candidates, scores, parent)
    place = entries.folder / "selection"
    found = write(place, scores, results, choice, None if parent is None else "parent")
    chosen = next(c for c in candidates if c.name == choice.chosen)
    pointer = None
    if to_promote:
        selected = Selected(
            schema="colosseum.selected/1", run=chosen.run, step=chosen.step, by=words, verdict=choice.verdict[:4000]
        )
        pointer = promote(entries.folder, selected)

    def table() -> list[RenderableType]:
        rows = []
        for row in found["candidates"]:
            mark = "selected" if row["name"] == choice.chosen else "tie" if row["name"] in choice.tied else ""
            pareto = "yes" if row["name"] in choice.pareto else ""
            figures = [x for score in row["scores"] for x in cells(ScoreRow.model_validate(score))[:2]]
            rows.append((row["name"], *figures, pareto, mark))
        headings = [x for score in scores for x in (f"{score.task} {score.metric}", "95% interval")]
        shown: list[RenderableType] = [columns(rows, ("", *headings, "Pareto", ""))]
        shown += _against_parent(choice) if parent is not None else []
        shown += [choice.verdict, f"picture: {place / 'selection.png'}"]
        if pointer is not None:
            shown.append(f"promoted: {entries.folder.name}@selected is {chosen.run} step {chosen.step:,}")
        return shown

    emit(as_json, {**found, "folder": str(place), "promoted": None if pointer is None else str(pointer)}, table)


def _against_parent(choice: Choice) -> list[str]:
    """What the selected checkpoint has forgotten."""
    shown = []
    for regression in choice.regressions:
        at = regression.change
        points = f"{100 * at.mean:+.1f} points ({100 * at.low:+.1f} to {100 * at.high:+.1f})"
        shown.append(f"worse than the parent: {regression.part}, {regression.metric}: {points}, {at.count:,} items")
    chance = f"; about {0.025 * choice.compared:.1f} by chance" if choice.compared > 1 else ""
    return [*shown, f"{len(choice.regressions)} of {choice.compared} parts are worse than the parent's{chance}"]
