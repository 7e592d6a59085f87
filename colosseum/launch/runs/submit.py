"""Compiled bundle -> run folder -> submission. The one place that makes run folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from colosseum.bundle import LaunchBundle, write_bundle
from colosseum.engines.planned import plan as plan_of
from colosseum.engines.registry import cannot_train, engine_of
from colosseum.errors import EnvironmentFault, Fault, RefusedInput
from colosseum.home import expanded, named_runs
from colosseum.launch import environment
from colosseum.launch.bundles import inputs
from colosseum.launch.bundles.compile import Compiled, Lineage, compile_bundle
from colosseum.launch.bundles.verify import same
from colosseum.launch.runs.exclusive import exclusively
from colosseum.launch.schedulers.base import Foreground, Scheduler, Submission
from colosseum.launch.schedulers.scripts import SCRIPTS, scripts_of
from colosseum.launch.stopwatch import part
from colosseum.planning.resolve import apply_layout
from colosseum.recipe.cluster import Cluster
from colosseum.recipe.schema import Recipe
from colosseum.rundir import RunDir, append_line, new_run_id
from colosseum.units import format_bytes

ROOM_BYTES = 1 << 20
"""Below it a disk is full."""
WAIT_S = 600.0
"""For another command that works on the same campaign or sweep."""


def prepare(recipe: Recipe, base: Path, *, lineage: Lineage | None = None) -> Compiled:
    """Anchors, plans and compiles a recipe; relative paths are read from ``base``."""
    recipe = engine_of(recipe.engine).pinned(inputs.with_row_counts(inputs.with_absolute_paths(recipe, base)))
    plan = plan_of(recipe)
    return compile_bundle(apply_layout(recipe, plan.layout), plan, lineage=lineage)


def runs_root(given: Path | None, cluster: Cluster) -> Path:
    """Where run folders are made: --runs, COLOSSEUM_RUNS, the cluster's own, ./runs."""
    return named_runs(given) or expanded(cluster.paths.runs, "cluster.paths.runs")


def find_run(name: str, runs: Path) -> RunDir:
    """A run by its folder, or by its name under ``runs``.

    Raises:
        RefusedInput: there is no such run.
    """
    for root in (Path(name), runs / name):
        if (root / "bundle").is_dir():
            return RunDir(root)
    rule = f"no such run: neither a run folder nor a name under {runs}"
    near = sorted((p.parent.name for p in runs.glob("*/bundle")), reverse=True)[:3] if runs.is_dir() else []
    raise RefusedInput([Fault(path="--from", value=name, rule=rule, nearest=tuple(near), where="command line")])


def warnings(compiled: Compiled) -> list[str]:
    """Differences of the engine from the recipe, and faults that only a submission refuses."""
    engine = engine_of(compiled.recipe.engine)
    found = engine.notes(compiled.recipe) + [fault.sentence() for fault in engine.drops(compiled.recipe)]
    if sentence := cannot_train(compiled.recipe):
        found.append(sentence)
    if sentence := scripts_of(compiled.recipe).too_small(compiled.recipe):
        found.append(sentence)
    found += inputs.site_warnings(compiled.recipe)
    if not compiled.plan.fits:
        found.append(_too_large(compiled))
    return found


def launch(
    compiled: Compiled, scheduler: Scheduler, runs: Path, *, shown: str, after: Sequence[str] = ()
) -> tuple[RunDir, Submission]:
    """Makes the run folder of a compiled recipe and starts it.

    Args:
        shown: the recipe's name as the user typed it.
        after: jobs that must succeed before.

    Raises:
        RefusedInput: inputs are missing (all are named), the plan or the machine is too small, the scheduler refuses.
        EnvironmentFault: a folder cannot be written, a package or the scheduler is missing.
    """
    recipe = compiled.recipe
    if sentence := cannot_train(recipe):
        raise RefusedInput(sentence)
    with part("checks"):
        refuse_what_cannot_start([compiled], inputs.missing(recipe, runs), runs, shown=shown)
    umask = recipe.cluster.paths.umask
    run = new_run(runs, recipe.name, umask)
    try:
        with part("bundle"):
            write_bundle(run.bundle, compiled.files, compiled.manifest, umask=umask)
        return run, start(run, recipe, scheduler, after=after)
    except BaseException:
        discard(run)
        raise


def refuse_what_cannot_start(compiled: Sequence[Compiled], missing: Sequence[Fault], runs: Path, *, shown: str) -> None:
    """What a launch of one or several recipes under ``runs`` would find out too late.

    Raises:
        RefusedInput: the machine or its memory is too small, or inputs are ``missing``.
        EnvironmentFault: the disk has not enough space for the checkpoints that are kept.
    """
    for one in compiled:
        if sentence := scripts_of(one.recipe).too_small(one.recipe):
            raise RefusedInput(f"{sentence}; to test it on this machine: colosseum rehearse {shown}")
        if not one.plan.fits:
            raise RefusedInput(_too_large(one))
    if missing:
        raise RefusedInput(missing)
    refuse_without_room(compiled, runs)


def refuse_without_room(compiled: Sequence[Compiled], runs: Path) -> None:
    """Raises EnvironmentFault: the disk, or the cluster's quota, is too small for the checkpoints that all keep."""
    needed = sum(one.plan.storage.disk_bytes for one in compiled if one.plan.storage is not None)
    free, quota = _free_bytes(runs), compiled[0].recipe.cluster.storage.quota_bytes
    if needed > free:
        has, cure = f"{runs} has {format_bytes(free)} free", ", or name another place with --runs"
    elif quota is not None and needed > quota:
        has, cure = f"cluster {compiled[0].recipe.cluster.name} has a quota of {format_bytes(quota)}", ""
    else:
        return
    of = compiled[0].recipe.name if len(compiled) == 1 else f"all {len(compiled)} runs"
    takes = f"the checkpoints that {of} keep{'s' * (len(compiled) == 1)} take {format_bytes(needed)}"
    raise EnvironmentFault(f"{takes} and {has}: keep fewer (checkpoint.keep_last){cure}")


def _free_bytes(folder: Path) -> int:
    """Of the file system that ``folder`` is or will be on."""
    place = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    return shutil.disk_usage(place).free


def replay(bundle: LaunchBundle, scheduler: Foreground, runs: Path) -> tuple[RunDir, Submission]:
    """A new run folder with ``bundle`` written again, started on this machine.

    What is written is what recipe and plan give, byte for byte the bundle: nothing is copied from a folder that
    somebody may change meanwhile.

    Raises:
        RefusedInput, EnvironmentFault: as ``launch``; the bundle is not what its recipe and plan give.
    """
    recipe, files, here = bundle.recipe, same(bundle).files, SCRIPTS["local"]
    if sentence := cannot_train(recipe) or here.too_small(recipe):
        raise RefusedInput(sentence)
    if faults := inputs.missing(recipe, runs):
        raise RefusedInput(faults)
    umask = recipe.cluster.paths.umask
    run, script = new_run(runs, recipe.name, umask), None
    try:
        write_bundle(run.bundle, files, bundle.manifest, umask=umask)
        scheduler.check(run, recipe)
        if here.name not in files:  # the bundle of a cluster
            script = here.render(recipe, bundle.plan, engine_of(recipe.engine).render(recipe, bundle.plan).argv)
        with modes_of(run.root):
            return run, note_submission(run, scheduler.submit(run, script=script))
    except BaseException:
        discard(run)
        raise


def start(run: RunDir, recipe: Recipe, scheduler: Scheduler, *, after: Sequence[str] = ()) -> Submission:
    """Submits a run folder, for the first time or again, and notes it.

    Raises:
        RefusedInput: the scheduler refuses, or a variable that the job needs is not set.
        EnvironmentFault: the disk is full: not even the word that it is could be written.
    """
    refuse_full_disk(run.root)
    if absent := environment.unset(recipe):
        raise RefusedInput(absent)
    scheduler.check(run, recipe)
    with modes_of(run.root):
        return note_submission(run, scheduler.submit(run, after=after))


def refuse_full_disk(folder: Path) -> None:
    """Raises EnvironmentFault: the disk is full, so a submission could not be recorded."""
    if _free_bytes(folder) < ROOM_BYTES:
        raise EnvironmentFault(f"the disk of {folder} is full: free some space, then start again")


@contextmanager
def modes_of(folder: Path) -> Iterator[None]:
    """While it lasts, what this process and its children make is for those whom ``folder`` is for, whatever the umask.

    Slurm gives a job the umask of the process that submits it.
    """
    before = os.umask(0o777 & ~folder.stat().st_mode)
    try:
        yield
    finally:
        os.umask(before)


def new_run(runs: Path, name: str, umask: int = 0o027) -> RunDir:
    """A fresh, empty run folder; two makers never share one.

    Args:
        umask: mode bits that it does not have, whatever the process' own umask (``cluster.paths.umask``).

    Raises:
        EnvironmentFault: it cannot be made.
    """
    while True:
        run = RunDir(runs / new_run_id(name))
        try:
            run.root.mkdir(parents=True)
            run.root.chmod(0o777 & ~umask)
            return run
        except FileExistsError:
            if not run.root.is_dir():
                raise EnvironmentFault(f"{runs} is not a folder") from None
        except OSError as error:
            raise EnvironmentFault(
                f"cannot make a run folder under {runs}: {error.strerror}; choose another folder with --runs"
            ) from error


def discard(run: RunDir) -> None:
    """A run folder that was never submitted."""
    if not run.submissions.exists():
        shutil.rmtree(run.root, ignore_errors=True)


def find_folder(kind: str, name: str, runs: Path) -> Path:
    """The folder of a campaign or sweep (``kind``) that was begun: by its name under ``runs``, or by itself.

    Raises:
        RefusedInput: there is none.
    """
    prefix, file = f"{kind}-", f"{kind}.json"
    for folder in (runs / f"{prefix}{name}", Path(name)):
        if (folder / file).is_file():
            return folder.resolve()
    near = sorted(p.parent.name.removeprefix(prefix) for p in runs.glob(f"{prefix}*/{file}"))
    rule = f"no such {kind} under {runs}"
    raise RefusedInput([Fault(path=kind.upper(), value=name, rule=rule, nearest=tuple(near[:3]), where="command line")])


@contextmanager
def locked(folder: Path, umask: int = 0o027) -> Iterator[None]:
    """Makes the folder of a campaign or sweep, if need be; one command at a time works on it, and files get its modes.

    Args:
        umask: as of ``new_run``.
    """
    try:
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            folder.chmod(0o777 & ~umask)
        folder.stat()
    except OSError as error:
        raise EnvironmentFault(f"cannot make {folder}: {error.strerror}; choose another folder with --runs") from error
    with modes_of(folder), exclusively(folder, wait_s=WAIT_S):
        yield


def note_submission(run: RunDir, submission: Submission) -> Submission:
    """Appends a line to submissions.jsonl."""
    row = asdict(submission)
    append_line(run.submissions, {**row, "argv": list(submission.argv)})
    return submission


def _too_large(compiled: Compiled) -> str:
    recipe, memory = compiled.recipe, compiled.plan.memory
    sizes = ""
    if memory is not None:
        needs = format_bytes(memory.device_bytes or memory.peak_bytes)
        sizes = f": a rank needs {needs} and has {format_bytes(memory.usable_bytes)}"
    return f"{recipe.name} does not fit the memory of {recipe.hardware.name}{sizes}; see `colosseum plan`"
