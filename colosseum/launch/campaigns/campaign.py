"""A campaign: a sequence of stages, each starting from the checkpoint of an earlier one, with a gate before each.

All stages are planned and compiled before the first one is submitted, so that a fault of the last shows at once.
campaign.json records each submission at once: running a campaign twice submits nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from colosseum.atomic import write_whole
from colosseum.bundle import to_json, write_bundle
from colosseum.engines.registry import engine_of
from colosseum.engines.releases import image_warnings
from colosseum.errors import Fault, RefusedInput
from colosseum.launch.bundles import inputs
from colosseum.launch.bundles.compile import Compiled
from colosseum.launch.campaigns import conditions, converting
from colosseum.launch.campaigns.file import CampaignFile, StageFile
from colosseum.launch.runs.state_file import JobId, RunName, read_state_file
from colosseum.launch.runs.submit import (
    find_folder,
    locked,
    prepare,
    refuse_what_cannot_start,
    refuse_without_room,
    runs_root,
)
from colosseum.recipe import derived
from colosseum.recipe.base import Name, Section, Text
from colosseum.recipe.load import load, load_cluster
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import FromRun, FromStage
from colosseum.rundir import RunDir, new_run_id

SCHEMA = "colosseum.campaign/1"
PLAN_SCHEMA = "colosseum.campaign-plan/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a started campaign."""

    name: str
    recipe: str
    overrides: tuple[str, ...]
    source: str | None
    """The stage whose checkpoint it starts from."""
    run: RunName
    """Its run folder's name."""
    gate: Mapping[str, str] = field(default_factory=dict)
    """Conditions of its gate."""
    gate_job: JobId | None = None
    job: JobId | None = None


class _File(Section):
    """campaign.json."""

    schema_: Literal["colosseum.campaign/1"] = Field(alias="schema")
    name: Name
    cluster: Text | None
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A campaign's folder; the run folders are beside it."""

    root: Path
    name: str
    cluster: str | None
    stages: tuple[Stage, ...]

    def run_of(self, stage: Stage) -> RunDir:
        return RunDir(self.root.parent / stage.run)

    def write(self) -> None:
        """Replaces campaign.json at once."""
        data = {"schema": SCHEMA, "name": self.name, "cluster": self.cluster}
        write_whole(self.root / "campaign.json", to_json({**data, "stages": [asdict(s) for s in self.stages]}))


def begin(file: CampaignFile, words: Sequence[str], *, cluster: str | None, runs: Path | None, base: Path) -> Campaign:
    """Plans and compiles every stage and creates the run folders; an earlier start of the same campaign is continued.

    Args:
        words: overrides of every stage.

    Raises:
        RefusedInput: a stage cannot be run, or a campaign of this name has other stages.
    """
    here = load_cluster(cluster)
    root = runs_root(runs, here).resolve()
    folder = root / f"campaign-{file.name}"
    with locked(folder, here.paths.umask):
        if (folder / "campaign.json").exists():
            known = read(folder)
            _same(known, file, words)
            return known
        planned = plan(file, words, cluster=cluster, root=root, base=base)
        campaign = Campaign(root=folder, name=file.name, cluster=cluster, stages=tuple(stage for stage, _ in planned))
        for stage, bundle in planned:
            run, umask = campaign.run_of(stage), bundle.recipe.cluster.paths.umask
            write_bundle(run.bundle, bundle.files, bundle.manifest, umask=umask)
            run.root.chmod(0o777 & ~umask)
            if stage.gate:
                write_whole(run.gate_conditions, to_json(conditions.as_file(stage.gate)))
        campaign.write()
        return campaign


def plan(
    file: CampaignFile, words: Sequence[str], *, cluster: str | None, root: Path, base: Path, dry: bool = False
) -> list[tuple[Stage, Compiled]]:
    """Every stage, planned and compiled; nothing is written.

    Args:
        root: the folder of the runs.
        dry: inputs need not exist, nor space for checkpoints.

    Raises:
        RefusedInput: a stage cannot be run, or not from the checkpoint of the one before.
    """
    found: list[tuple[Stage, Compiled]] = []
    for entry in file.stages:
        stage, bundle = _stage(entry, words, [stage for stage, _ in found], cluster, root, base, dry=dry)
        engines = {before.name: its.recipe.engine for before, its in found}
        if stage.source:
            _refuse_without_conversion(entry.name, engines[stage.source], bundle.recipe)
        found.append((stage, bundle))
    if not dry:
        refuse_without_room([bundle for _, bundle in found], root)  # of all stages together
    return found


def _refuse_without_conversion(stage: str, writer: str, recipe: Recipe) -> None:
    """Raises RefusedInput where a stage's gate could not convert the checkpoint of the stage before."""
    found = converting.faults(recipe) if converting.importer(writer, recipe.engine) else []
    if not converting.importer(writer, recipe.engine) and (rule := inputs.no_conversion(writer, recipe.engine)):
        found = [Fault(path="engine", value=recipe.engine, rule=rule)]
    if found:
        raise RefusedInput([replace(fault, rule=f"stage {stage}: {fault.rule}") for fault in found])


def as_planned(file: CampaignFile, planned: Sequence[tuple[Stage, Compiled]]) -> dict[str, Any]:
    """Stages before they are begun, as ``campaign run --dry-run --json`` prints them."""
    rows = [
        {
            "stage": stage.name,
            "from": stage.source,
            "recipe": stage.recipe,
            "engine": compiled.recipe.engine,
            "recipe_hash": compiled.manifest["recipe_hash"],
            "nodes": derived.nodes_and_ranks(compiled.recipe)[0],
            "total_steps": compiled.manifest["total_steps"],
            "days": compiled.plan.days,
            "checkpoint_load": list(compiled.recipe.checkpoint.load),
        }
        for stage, compiled in planned
    ]
    return {"schema": PLAN_SCHEMA, "campaign": file.name, "stages": rows}


def remarks(file: CampaignFile, stages: Mapping[str, tuple[Stage, Recipe]]) -> list[str]:
    """Warnings before the first stage starts, each with the stages that it applies to."""
    found: dict[str, list[str]] = {}
    for entry in file.stages:
        stage, recipe = stages[entry.name]
        engine = engine_of(recipe.engine)
        texts = [*engine.notes(recipe), *(fault.sentence() for fault in engine.drops(recipe)), *image_warnings(recipe)]
        if words := entry.for_engine.get(recipe.engine):
            texts.insert(0, f"with engine {recipe.engine} the campaign sets {' '.join(words)}")
        parent = stages[stage.source][1] if stage.source else recipe
        before = parent.model.num_layers
        if kind := converting.importer(parent.engine, recipe.engine):
            texts.append(f"its gate starts it from a checkpoint {converting.sentence(parent.engine, kind)}")
        if before != (layers := recipe.model.num_layers):
            texts.append(f"has {layers} layers and {stage.source} has {before}: {_expansion(recipe, before)}")
        for text in texts:
            found.setdefault(text, []).append(entry.name)
    return [f"stage{'s' * (len(names) > 1)} {', '.join(names)}: {text}" for text, names in found.items()]


def _expansion(recipe: Recipe, before: int) -> str:
    if not engine_of(recipe.engine).has_metadata or before > recipe.model.num_layers:
        return "its gate fails until that checkpoint has been expanded with the tools of its engine"
    kept = "Adam's moments carried" if "optimizer" in recipe.checkpoint.load else "weights only"
    return f"its gate expands that checkpoint (identity, evenly, {kept}), as `colosseum checkpoint expand` does"


def read(folder: Path) -> Campaign:
    """A started campaign.

    Raises:
        RefusedInput: there is none in the folder.
    """
    file = read_state_file(folder / "campaign.json", _File)
    return Campaign(root=folder, name=file.name, cluster=file.cluster, stages=file.stages)


def find(name: str, runs: Path) -> Campaign:
    """A campaign by its name under ``runs``, or by its folder.

    Raises:
        RefusedInput: there is none.
    """
    return read(find_folder("campaign", name, runs))


def _stage(
    entry: StageFile,
    words: Sequence[str],
    before: Sequence[Stage],
    cluster: str | None,
    root: Path,
    base: Path,
    *,
    dry: bool,
) -> tuple[Stage, Compiled]:
    """A stage with its run's name, compiled to start from the run of the stage in its recipe."""
    overrides = (*entry.overrides, *words)
    try:
        recipe = load(entry.recipe, overrides, cluster=cluster).recipe
        if more := entry.for_engine.get(recipe.engine):
            recipe = load(entry.recipe, (*entry.overrides, *more, *words), cluster=cluster).recipe
        runs = {stage.name: stage.run for stage in before}
        source, begins_from = None, recipe.checkpoint.source
        if isinstance(begins_from, FromStage):
            source = begins_from.stage
            if source not in runs:
                rule = "names no stage before this one"
                raise RefusedInput(
                    [Fault(path="checkpoint.from", value=str(begins_from), rule=rule, nearest=tuple(runs))]
                )
            recipe = recipe.starting_from(FromRun(runs[source]))
        compiled = prepare(recipe, base)
        if not dry:
            known = [f for f in inputs.missing(compiled.recipe, root) if source is None or f.path != "checkpoint.from"]
            refuse_what_cannot_start([compiled], known, root, shown=entry.recipe)
    except RefusedInput as refused:
        raise RefusedInput([replace(f, rule=f"stage {entry.name}: {f.rule}") for f in refused.faults]) from refused
    run = new_run_id(recipe.name)
    if entry.gate and source is None:
        rule = f"stage {entry.name}: a gate needs a checkpoint of an earlier stage (checkpoint.from=stage:NAME)"
        raise RefusedInput([Fault(path="gate", value=dict(entry.gate), rule=rule)])
    stage = Stage(
        name=entry.name, recipe=entry.recipe, overrides=overrides, source=source, run=run, gate=dict(entry.gate)
    )
    return stage, compiled


def _same(known: Campaign, file: CampaignFile, words: Sequence[str]) -> None:
    wanted = [(entry.name, entry.recipe, (*entry.overrides, *words), dict(entry.gate)) for entry in file.stages]
    if wanted != [(stage.name, stage.recipe, stage.overrides, dict(stage.gate)) for stage in known.stages]:
        raise RefusedInput(
            f"campaign {known.name} was started with other stages or overrides ({known.root}): give this one another "
            "name; its first stage can continue from an old run with checkpoint.from=run:RUN"
        )
