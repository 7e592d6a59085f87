"""What a train or align command requests: a new run, compiled, or another attempt of an existing run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from colosseum.bundle import RECIPE, LaunchBundle, read_bundle, to_yaml
from colosseum.engines.registry import engine_of
from colosseum.engines.releases import image_warnings
from colosseum.errors import Fault, RefusedInput
from colosseum.launch.bundles.compile import Compiled, Lineage
from colosseum.launch.bundles.inputs import checkpoint_reference
from colosseum.launch.runs.selected import run_and_step_of
from colosseum.launch.runs.submit import find_run, prepare, runs_root
from colosseum.recipe.load import Loaded, Setting, cluster_names, load, load_cluster
from colosseum.recipe.override import parse_overrides
from colosseum.recipe.schema import Recipe
from colosseum.recipe.stages import recipe_of_stage
from colosseum.recipe.tasks import command
from colosseum.rundir import RunDir

Origins = Mapping[str, tuple[Setting, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of one command."""

    kind: str
    """cpt, sft or dpo."""
    recipe: str | None = None
    overrides: tuple[str, ...] = ()
    stage: str | None = None
    family: str | None = None
    source: str | None = None
    """RUN[@STEP] or RUN@selected of --from."""
    cluster: str | None = None
    runs: Path | None = None
    strict: bool = False
    """Refuse what the engine would leave out (``Engine.drops``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to be made."""

    compiled: Compiled
    runs: Path
    shown: str
    """The recipe as the user named it."""
    warnings: tuple[str, ...]
    origins: Origins


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """A run to be started again in its own folder."""

    run: RunDir
    bundle: LaunchBundle


def read(request: Request, base: Path) -> NewRun | Continued:
    """Loads, plans and compiles a request; relative paths are read from ``base``.

    Raises:
        RefusedInput: with every fault that could be found, each with its place.
    """
    named = request.recipe is not None or request.stage is not None or request.family is not None
    if named or request.source is None:
        return _new(request, base)
    runs = runs_root(request.runs, load_cluster(request.cluster))
    name, step = run_and_step_of(request.source, runs)
    run = find_run(name, runs)
    bundle = read_bundle(run.bundle)
    if not request.overrides and step is None and request.cluster is None:
        _check_kind(request.kind, bundle.recipe, {})
        return Continued(run=run, bundle=bundle)
    loaded = _load_again(bundle, request)
    runs = runs_root(request.runs, loaded.recipe.cluster)
    return _compiled(request, loaded, base, runs, (run, step), shown=run.root.name)


@contextmanager
def placing(origins: Origins) -> Iterator[None]:
    """Faults raised inside get the file and line, or the word, that set their field."""
    try:
        yield
    except RefusedInput as refused:
        faults = [f if f.where else replace(f, where=_where(f.path, origins)) for f in refused.faults]
        raise RefusedInput(faults) from refused


def _where(path: str, origins: Origins) -> str:
    """Of the path, or of the nearest section around it that was set as a whole."""
    while path:
        if settings := origins.get(path):
            return settings[-1].where
        path = path.rpartition(".")[0]
    return ""


def _new(request: Request, base: Path) -> NewRun:
    if request.recipe is not None and (request.stage or request.family):
        word = "--stage" if request.stage else "--family"
        raise RefusedInput(f"{request.recipe} and {word} both name a recipe; give one of them")
    name = request.recipe or recipe_of_stage(request.kind, request.stage, request.family)
    loaded = load(name, request.overrides, cluster=request.cluster)
    runs = runs_root(request.runs, loaded.recipe.cluster)
    parent = None
    if request.source is not None:
        run, step = run_and_step_of(request.source, runs)
        parent = find_run(run, runs), step
    return _compiled(request, loaded, base, runs, parent, shown=name)


def _load_again(bundle: LaunchBundle, request: Request) -> Loaded:
    """A run's own recipe with overrides; a newly chosen group replaces the whole section that it sets.

    Site facts are read again from the cluster file that the run names: a run folder may be somebody else's.

    Raises:
        RefusedInput: no cluster file has the run's name and the command names none.
    """
    chosen = set(parse_overrides(request.overrides)[0].choices)
    cluster = request.cluster
    if cluster is None and "cluster" not in chosen:
        cluster = bundle.recipe.cluster.name
        if cluster not in cluster_names():
            rule = "the run's cluster has no cluster file on this machine: choose another with --cluster"
            raise RefusedInput([Fault(path="cluster", value=cluster, rule=rule, nearest=cluster_names())])
    data = {key: value for key, value in bundle.recipe.as_data().items() if key not in chosen | {"cluster"}}
    with tempfile.TemporaryDirectory(prefix="colosseum-") as folder:
        file = Path(folder) / RECIPE
        file.write_bytes(to_yaml(data))
        with _named(file, bundle.root / RECIPE) as named:
            loaded = load(str(file), request.overrides, cluster=cluster)
    settings = {path: tuple(replace(s, where=named(s.where)) for s in its) for path, its in loaded.origins.items()}
    loaded = replace(loaded, origins=settings)
    if loaded.recipe.cluster.name != bundle.recipe.cluster.name:
        return loaded
    now, then = loaded.recipe.cluster.model_dump(), bundle.recipe.cluster.model_dump()
    if other := [key for key in now if key != "paths" and now[key] != then[key]]:  # a run's paths are absolute
        fields = ", ".join(f"cluster.{key}" for key in other)
        warning = f"{fields} of the run differed from cluster {loaded.recipe.cluster.name} as it is now, which is used"
        loaded = replace(loaded, warnings=(*loaded.warnings, warning))
    return loaded


@contextmanager
def _named(file: Path, recipe: Path) -> Iterator[Callable[[str], str]]:
    """Where a value was set: in the run's own recipe, not in the temporary file that it is read from."""

    def named(where: str) -> str:
        return str(recipe) if where.startswith(str(file)) else where

    try:
        yield named
    except RefusedInput as refused:
        faults = [replace(fault, where=named(fault.where)) for fault in refused.faults]
        raise RefusedInput(faults, subject=refused.subject) from None


def _compiled(
    request: Request, loaded: Loaded, base: Path, runs: Path, parent: tuple[RunDir, int | None] | None, *, shown: str
) -> NewRun:
    recipe, lineage = loaded.recipe, None
    _check_kind(request.kind, recipe, loaded.origins)
    if parent is not None:
        run, step = parent
        recipe, lineage = _begun_from(recipe, run, step, runs, request)
    with placing(loaded.origins):
        compiled = prepare(recipe, base, lineage=lineage)
        if request.strict and (dropped := engine_of(compiled.recipe.engine).drops(compiled.recipe)):
            raise RefusedInput(dropped)
    warnings = (*loaded.warnings, *image_warnings(recipe))
    return NewRun(compiled=compiled, runs=runs, shown=shown, warnings=warnings, origins=loaded.origins)


def _begun_from(recipe: Recipe, run: RunDir, step: int | None, runs: Path, request: Request) -> tuple[Recipe, Lineage]:
    if any(word.lstrip("+").startswith("checkpoint.from=") for word in request.overrides):
        raise RefusedInput("--from cannot be combined with checkpoint.from=…; give one of them")
    reference, step = checkpoint_reference(run, step, runs)
    return recipe.starting_from(reference), Lineage(run=run.root.resolve().name, step=step)


def _check_kind(kind: str, recipe: Recipe, origins: Origins) -> None:
    if recipe.task.kind == kind:
        return
    rule = f"this command trains {kind}; use `{command(recipe.task.kind)}`"
    where = _where("task.kind", origins)
    raise RefusedInput([Fault(path="task.kind", value=recipe.task.kind, rule=rule, where=where)])
