"""A sweep: runs of one recipe that differ in a few values, submitted as one job array or worked through here.

Every point is loaded, planned and compiled before anything is written. sweep.json records what was started, so that the
same command again submits nothing twice. The sweep's folder links the run folders by index: the array script needs no
path, and Slurm opens each job's log in its own run folder.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from colosseum.atomic import write_whole
from colosseum.bundle import read_bundle, to_json, write_bundle
from colosseum.engines.registry import cannot_train
from colosseum.errors import Fault, RefusedInput
from colosseum.launch.bundles import inputs
from colosseum.launch.runs.request import NewRun, Request, placing, read
from colosseum.launch.runs.state_file import JobId, RunName, read_state_file
from colosseum.launch.runs.submit import (
    discard,
    find_folder,
    locked,
    new_run,
    note_submission,
    refuse_full_disk,
    refuse_what_cannot_start,
    start,
)
from colosseum.launch.schedulers.base import Foreground, Queue, Say
from colosseum.launch.schedulers.registry import scheduler_of
from colosseum.launch.schedulers.scripts import scripts_of
from colosseum.recipe.base import Count, Name, Section
from colosseum.rundir import RunDir

SCHEMA: Literal["colosseum.sweep/1"] = "colosseum.sweep/1"
DRY_RUN_SCHEMA = "colosseum.sweep-dry-run/1"
SWEEP, SCRIPT = "sweep.json", "array.sbatch"
MAX_POINTS = 1000
"""Slurm's own default for an array is 1001."""
MAX_TEXT = 10_000
Values = Mapping[str, str]
"""Key -> value, as the user wrote it."""
_ANOTHER_NAME = "give this sweep another name with name=…"


class Point(Section):
    """One run of a started sweep."""

    values: Values
    run: RunName
    """Its run folder's name."""
    recipe_hash: str


class _File(Section):
    """sweep.json."""

    schema_: Literal["colosseum.sweep/1"] = Field(alias="schema")
    name: Name
    at_once: Count | None
    job: JobId | None
    points: Annotated[tuple[Point, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep's folder; the run folders stand beside it."""

    root: Path
    name: str
    points: tuple[Point, ...]
    at_once: int | None
    job: str | None = None
    """The array's id; None = not submitted, or of this machine."""

    def run_of(self, point: Point) -> RunDir:
        return RunDir(self.root.parent / point.run)

    def write(self) -> None:
        """Replaces sweep.json at once."""
        data = {"schema": SCHEMA, "name": self.name, "at_once": self.at_once, "job": self.job}
        write_whole(self.root / SWEEP, to_json({**data, "points": [point.model_dump() for point in self.points]}))


def parse_axis(word: str) -> tuple[str, tuple[str, ...]]:
    """``KEY=a,b,c`` as the key and its values, each a YAML flow value: a comma inside brackets divides nothing.

    Raises:
        RefusedInput: it is none, the values are fewer than two, or the key may not differ between points.
    """
    key, _, text = word.partition("=")
    key = key.strip().lstrip("+")

    def refused(rule: str) -> RefusedInput:
        return RefusedInput([Fault(path="--sweep", value=word[:200], rule=rule, where="command line")])

    try:
        items = yaml.compose(f"[{text}]", Loader=yaml.SafeLoader) if len(text) <= MAX_TEXT else None
    except (yaml.YAMLError, RecursionError):
        items = None
    if not key or not isinstance(items, yaml.SequenceNode) or not items.flow_style:
        raise refused("a sweep must have the form KEY=a,b,c, each value written as in KEY=VALUE")
    if len(items.value) < 2:
        raise refused("a sweep needs at least two values")
    if key == "name" or key.partition(".")[0] == "cluster":
        raise refused("all points of a sweep have the same name and cluster")
    return key, tuple(f"[{text}]"[node.start_mark.index : node.end_mark.index] for node in items.value)


def points_of(request: Request, words: Sequence[str], base: Path) -> list[tuple[Values, NewRun]]:
    """The compiled runs of a sweep: each value of the first ``--sweep`` with each of the second, and so on.

    Raises:
        RefusedInput: with the faults of every point; a fault that all points share comes once.
    """
    axes = [parse_axis(word) for word in words]
    keys = [key for key, _ in axes]
    count = 1
    for _, texts in axes:
        count *= len(texts)
    if len(set(keys)) < len(keys) or count > MAX_POINTS:
        rule = f"gives {count:,} points; at most {MAX_POINTS:,} are allowed" if count > MAX_POINTS else "repeats a key"
        raise RefusedInput([Fault(path="--sweep", value=list(words), rule=rule, where="command line")])
    combinations = [dict(zip(keys, texts, strict=True)) for texts in itertools.product(*(t for _, t in axes))]
    found: list[tuple[Values, NewRun]] = []
    faults: list[tuple[Values, Fault]] = []
    for values in combinations:
        point_words = tuple(f"{key}={text}" for key, text in values.items())
        try:
            asked = read(replace(request, overrides=(*request.overrides, *point_words)), base)
        except RefusedInput as refused:
            faults += [(values, fault) for fault in refused.faults]
            continue
        if not isinstance(asked, NewRun):
            raise TypeError("a run with overrides is a new one")
        found.append((values, asked))
    if faults:
        raise RefusedInput(_of_points(faults, len(combinations)))
    _refuse_duplicates(found)
    return found


def begin(points: Sequence[tuple[Values, NewRun]], at_once: int | None) -> Sweep:
    """Creates the run folders; an earlier start of the same sweep is continued.

    Raises:
        RefusedInput: a point could not start, or a sweep of this name has other points.
        EnvironmentFault: a folder cannot be created, or the disk has not enough space for the checkpoints of all runs.
    """
    first = points[0][1]
    name, root = first.compiled.recipe.name, first.runs.resolve()
    hashes = [asked.compiled.manifest["recipe_hash"] for _, asked in points]
    folder = root / f"sweep-{name}"
    if known := _known(folder, hashes):
        return known
    script = _checked(points, root)
    umask = first.compiled.recipe.cluster.paths.umask
    with locked(folder, umask):
        if known := _known(folder, hashes):
            return known
        _clear(folder)
        made: list[RunDir] = []
        try:
            for index, (_, asked) in enumerate(points):
                run = new_run(root, f"{name}-{index}", umask)
                made.append(run)
                run.logs.mkdir()
                write_bundle(run.bundle, asked.compiled.files, asked.compiled.manifest, umask=umask)
                (folder / str(index)).symlink_to(Path("..") / run.root.name)
            if script:
                (folder / SCRIPT).write_text(script)
            rows = zip(points, made, hashes, strict=True)
            found = tuple(Point(values=v, run=run.root.name, recipe_hash=digest) for (v, _), run, digest in rows)
            sweep = Sweep(root=folder, name=name, points=found, at_once=at_once)
            sweep.write()
        except BaseException:
            _discard_all(folder, made)
            raise
    return sweep


def submit(sweep: Sweep, queue: Queue) -> tuple[Sweep, bool]:
    """Submits the array, unless it was; the sweep after it, and whether it was submitted now.

    Raises:
        RefusedInput: Slurm refuses it; then nothing of the sweep is left.
    """
    with locked(sweep.root):
        sweep = read_sweep(sweep.root)
        if sweep.job is not None:
            return sweep, False
        runs = [sweep.run_of(point) for point in sweep.points]
        refuse_full_disk(sweep.root)
        try:
            submissions = queue.submit_array(sweep.root, SCRIPT, len(runs), sweep.at_once)
        except BaseException:
            _discard_all(sweep.root, runs)
            raise
        sweep = replace(sweep, job=submissions[0].job_id.partition("_")[0])
        sweep.write()
        for run, submission in zip(runs, submissions, strict=True):
            note_submission(run, submission)
        return sweep, True


def run_here(sweep: Sweep, scheduler: Foreground, say: Say) -> bool:
    """Runs what is not complete yet, on this machine; True if asked to stop before the end.

    Args:
        say: is given a sentence at each start.

    Raises:
        RefusedInput: a run folder was deleted.
    """
    if gone := [point.run for point in sweep.points if not sweep.run_of(point).root.is_dir()]:
        raise RefusedInput(f"run folders of sweep {sweep.name} were deleted ({', '.join(gone)}): {_ANOTHER_NAME}")

    def start_one(index: int, point: Point) -> str:
        run = sweep.run_of(point)
        say(f"point {index}, {overrides_of(point.values)}: {run.root}")
        return start(run, read_bundle(run.bundle).recipe, scheduler).job_id

    waiting = [(i, p) for i, p in enumerate(sweep.points) if not sweep.run_of(p).is_complete()]
    starts = [partial(start_one, index, point) for index, point in waiting]
    return scheduler.work_through(starts, sweep.at_once or 1, say)


def read_sweep(folder: Path) -> Sweep:
    """A started sweep.

    Raises:
        RefusedInput: there is none in the folder.
    """
    file = read_state_file(folder / SWEEP, _File)
    return Sweep(root=folder, name=file.name, points=file.points, at_once=file.at_once, job=file.job)


def find_sweep(name: str, runs: Path) -> Sweep:
    """A sweep by its name under ``runs``, or by its folder.

    Raises:
        RefusedInput: there is none.
    """
    return read_sweep(find_folder("sweep", name, runs))


def array_script(points: Sequence[tuple[Values, NewRun]]) -> str:
    """The job array's script; empty for this machine.

    Raises:
        RefusedInput: the points differ in what they ask Slurm for.
    """
    planned = [(asked.compiled.recipe, asked.compiled.plan) for _, asked in points]
    render = scripts_of(planned[0][0]).render_array
    return render(planned) if render is not None else ""


def array_option(points: Sequence[tuple[Values, NewRun]], at_once: int | None) -> str | None:
    """The option that the array's script is submitted with; None = no queue."""
    scheduler = scheduler_of(points[0][1].compiled.recipe.cluster.scheduler)
    return scheduler.array_option(len(points), at_once) if isinstance(scheduler, Queue) else None


def as_planned(points: Sequence[tuple[Values, NewRun]], at_once: int | None) -> dict[str, Any]:
    """A sweep before it is begun, as ``--sweep … --dry-run --json`` prints it."""
    compiled = [asked.compiled for _, asked in points]
    rows = [
        {"values": dict(values), "recipe_hash": one.manifest["recipe_hash"], "plan": one.plan.as_json()}
        for (values, _), one in zip(points, compiled, strict=True)
    ]
    head = {"schema": DRY_RUN_SCHEMA, "sweep": compiled[0].recipe.name, "script": array_script(points) or None}
    return {**head, "array": array_option(points, at_once), "points": rows}


def overrides_of(values: Values) -> str:
    """The values of a point as they were typed."""
    return " ".join(f"{key}={text}" for key, text in values.items())


def _known(folder: Path, hashes: Sequence[str]) -> Sweep | None:
    """The sweep that was started in a folder; it must match the requested one."""
    if not (folder / SWEEP).exists():
        return None
    known = read_sweep(folder)
    if [point.recipe_hash for point in known.points] != list(hashes):
        raise RefusedInput(
            f"sweep {known.name} was started with other points or another recipe ({folder}): {_ANOTHER_NAME}"
        )
    return known


def _clear(folder: Path) -> None:
    """Removes the links of an interrupted start.

    Raises:
        RefusedInput: runs behind them were started: it was no begin, sweep.json is lost.
    """
    links = [path for path in folder.iterdir() if path.is_symlink()]
    if any(RunDir(link).submissions.exists() for link in links):
        raise RefusedInput(f"{folder} has no {SWEEP} any more, but its runs were started: {_ANOTHER_NAME}")
    for link in links:
        link.unlink()


def _checked(points: Sequence[tuple[Values, NewRun]], root: Path) -> str:
    """The array's script, after all points were checked."""
    script = array_script(points)
    missing: list[tuple[Values, Fault]] = []
    for values, asked in points:
        if sentence := cannot_train(asked.compiled.recipe):
            raise RefusedInput(sentence)
        try:
            with placing(asked.origins):
                if faults := inputs.missing(asked.compiled.recipe, root):
                    raise RefusedInput(faults)
        except RefusedInput as refused:
            missing += [(values, fault) for fault in refused.faults]
    first = points[0][1]
    compiled = [asked.compiled for _, asked in points]
    refuse_what_cannot_start(compiled, _of_points(missing, len(points)), root, shown=first.shown)
    return script


def _of_points(faults: Sequence[tuple[Values, Fault]], count: int) -> list[Fault]:
    """Each fault with the point that has it; one that all ``count`` points have, once and as it is."""
    sentences = [fault.sentence() for _, fault in faults]
    found: dict[str, Fault] = {}
    for (values, fault), sentence in zip(faults, sentences, strict=True):
        if sentences.count(sentence) >= count:
            found[sentence] = fault
        else:
            found[f"{sentence} {values}"] = replace(fault, rule=f"{fault.rule} (at {overrides_of(values)})")
    return list(found.values())


def _refuse_duplicates(points: Sequence[tuple[Values, NewRun]]) -> None:
    """Two points that are the same recipe: a value written twice, or a key that changes nothing."""
    seen: dict[str, Values] = {}
    for values, asked in points:
        digest = asked.compiled.manifest["recipe_hash"]
        if digest in seen:
            rule = f"is the same recipe as {overrides_of(seen[digest])}"
            raise RefusedInput([Fault(path="--sweep", value=overrides_of(values), rule=rule, where="command line")])
        seen[digest] = values


def _discard_all(folder: Path, runs: Sequence[RunDir]) -> None:
    """A sweep of which nothing was submitted."""
    for run in runs:
        discard(run)
    shutil.rmtree(folder, ignore_errors=True)
