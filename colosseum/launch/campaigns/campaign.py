"""A campaign: stages one after the other, each from the checkpoint of one before, with a gate at every hand-over.

All stages are planned and compiled before the first one is submitted, so that a fault of the last shows at once. What
was submitted stands in campaign.json, written after each submission: running a campaign twice submits nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from colosseum.atomic import write_whole
from colosseum.bundle import read_bundle, to_json, write_bundle
from colosseum.engines.registry import engine_of
from colosseum.errors import EnvironmentFault, Fault, RefusedInput
from colosseum.launch.bundles import inputs
from colosseum.launch.bundles.compile import Compiled
from colosseum.launch.campaigns.gate import read_gate
from colosseum.launch.runs.jobs import LIVE, Job, jobs_of, unasked_start
from colosseum.launch.runs.kept import JobId, RunName, read_kept
from colosseum.launch.runs.submit import (
    find_folder,
    locked,
    note_submission,
    prepare,
    refuse_what_cannot_start,
    refuse_without_room,
    runs_root,
)
from colosseum.launch.schedulers.base import JobState, Queue
from colosseum.launch.schedulers.registry import scheduler_of
from colosseum.recipe import site
from colosseum.recipe.load import load, load_cluster
from colosseum.recipe.schema import EngineName, Name, Recipe, Section, Text
from colosseum.rundir import RunDir, new_run_id

SCHEMA = "colosseum.campaign/1"
MAX_BYTES = 1 << 16
GATE_COMMAND = "python -m colosseum.launch.campaigns.gate"


class StageFile(Section):
    """One stage as a file names it."""

    name: Name
    recipe: Text
    overrides: tuple[Text, ...] = ()
    for_engine: Mapping[EngineName, tuple[Text, ...]] = {}
    """More overrides where the stage runs with this engine; the command's own come after them."""


class CampaignFile(Section):
    """A campaign's YAML file."""

    name: Name
    stages: tuple[StageFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a campaign that was begun."""

    name: str
    recipe: str
    overrides: tuple[str, ...]
    source: str | None
    """The stage whose checkpoint it begins from."""
    run: RunName
    """Its run folder's name."""
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
    """A campaign's folder; the run folders stand beside it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatus:
    """Where a stage stands."""

    stage: Stage
    job: Job | None
    gate: JobState | None
    word: str
    """done, a job's own word, held (the gate refused), waiting, or planned."""
    why: str


def read_file(name: str) -> CampaignFile:
    """A campaign's YAML file, or a shipped one by its name.

    Raises:
        RefusedInput: with every fault of the file.
    """
    path = Path(name)
    shipped = resources.files("colosseum.recipes").joinpath("campaigns", f"{path.stem}.yaml")
    try:
        data = path.read_bytes() if path.is_file() else shipped.read_bytes() if "/" not in name else None
    except OSError:
        data = None
    if data is None:
        raise RefusedInput([Fault(path="FILE", value=name, rule="no such campaign file", where="command line")])
    if len(data) > MAX_BYTES:
        raise RefusedInput(f"{name} is no campaign file: it has more than {MAX_BYTES:,} bytes")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(data, Loader=yaml.SafeLoader)):
            raise RefusedInput(f"{name}: a campaign file has no YAML aliases")
        found = CampaignFile.model_validate(_tuples(yaml.safe_load(data)))
    except yaml.YAMLError as error:
        raise RefusedInput(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        raise RefusedInput(
            [
                Fault(path=".".join(map(str, e["loc"])), value=e["input"], rule=e["msg"], where=name)
                for e in error.errors(include_url=False)
            ]
        ) from error
    if faults := _site_faults(found, name):
        raise RefusedInput(faults)
    names = [stage.name for stage in found.stages]
    if not names or len(set(names)) < len(names):
        raise RefusedInput(
            [Fault(path="stages", value=names, rule="must be one or more, of different names", where=name)]
        )
    return found


def _site_faults(file: CampaignFile, name: str) -> list[Fault]:
    """Overrides of a campaign file that set site facts: it is passed on like a recipe."""
    found = []
    for stage in file.stages:
        for word in (*stage.overrides, *(word for words in stage.for_engine.values() for word in words)):
            key = word.partition("=")[0].strip().lstrip("+~")
            if key.startswith("cluster."):
                found.append(Fault(path=key, value=None, rule=f"stage {stage.name}: {site.RULE}", where=name))
    return found


def begin(file: CampaignFile, words: Sequence[str], *, cluster: str | None, runs: Path | None, base: Path) -> Campaign:
    """Plans and compiles every stage and makes the run folders; an earlier begin of the same campaign is taken up.

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
        campaign.write()
        return campaign


def plan(
    file: CampaignFile, words: Sequence[str], *, cluster: str | None, root: Path, base: Path, dry: bool = False
) -> list[tuple[Stage, Compiled]]:
    """Every stage, planned and compiled; nothing is written.

    Args:
        root: the folder of the runs.
        dry: inputs need not be there, nor room for checkpoints.

    Raises:
        RefusedInput: a stage cannot be run, or not from the checkpoint of the one before.
    """
    found: list[tuple[Stage, Compiled]] = []
    for entry in file.stages:
        stage, bundle = _stage(entry, words, [stage for stage, _ in found], cluster, root, base, dry=dry)
        engines = {before.name: its.recipe.engine for before, its in found}
        if stage.source and (rule := inputs.no_conversion(engines[stage.source], bundle.recipe.engine)):
            raise RefusedInput([Fault(path="engine", value=bundle.recipe.engine, rule=f"stage {entry.name}: {rule}")])
        found.append((stage, bundle))
    if not dry:
        refuse_without_room([bundle for _, bundle in found], root)  # of all stages together
    return found


def remarks(file: CampaignFile, stages: Mapping[str, tuple[Stage, Recipe]]) -> list[str]:
    """What one should know before the first stage begins, each sentence with the stages it is of."""
    found: dict[str, list[str]] = {}
    for entry in file.stages:
        stage, recipe = stages[entry.name]
        texts = engine_of(recipe.engine).notes(recipe)
        if words := entry.for_engine.get(recipe.engine):
            texts.insert(0, f"with engine {recipe.engine} the campaign sets {' '.join(words)}")
        before = stages[stage.source][1].model.num_layers if stage.source else recipe.model.num_layers
        if before != (layers := recipe.model.num_layers):
            texts.append(
                f"has {layers} layers and {stage.source} has {before}: its gate holds it until that checkpoint has "
                "grown: colosseum checkpoint expand for mcore; a .nemo grows elsewhere (docs/guides/checkpoints.md)"
            )
        for text in texts:
            found.setdefault(text, []).append(entry.name)
    return [f"stage{'s' * (len(names) > 1)} {', '.join(names)}: {text}" for text, names in found.items()]


def read(folder: Path) -> Campaign:
    """A campaign that was begun.

    Raises:
        RefusedInput: there is none in the folder.
    """
    file = read_kept(folder / "campaign.json", _File)
    return Campaign(root=folder, name=file.name, cluster=file.cluster, stages=file.stages)


def find(name: str, runs: Path) -> Campaign:
    """A campaign by its name under ``runs``, or by its folder.

    Raises:
        RefusedInput: there is none.
    """
    return read(find_folder("campaign", name, runs))


def submit(campaign: Campaign, queue: Queue, *, again: bool) -> tuple[Campaign, list[str]]:
    """Submits what is not submitted yet; the campaign after it, and the names of the stages submitted.

    Args:
        again: also the first stage that is neither done nor on its way, and all after it.

    Raises:
        RefusedInput: the queue refuses a job.
    """
    with locked(campaign.root):
        campaign = read(campaign.root)
        standing = {status.stage.name: status for status in statuses(campaign, must_answer=True)}
        submitted: list[str] = []
        for index, stage in enumerate(campaign.stages):
            run, status = campaign.run_of(stage), standing[stage.name]
            on_its_way = status.word in (*LIVE, "done") or (stage.job is not None and not again)
            if on_its_way and stage.source not in submitted:
                continue
            if status.job is not None and status.word in LIVE:  # it waits for a job that is no more
                queue.cancel(status.job.submission.job_id)
            recipe = read_bundle(run.bundle).recipe
            if stage.job is None:
                queue.check(run, recipe)
            else:
                run.forgive_attempts()
            jobs = {s.name: s.job for s in campaign.stages}
            after: list[str] = []
            gate_job = None
            if stage.source is not None:
                before = jobs[stage.source]
                waits = [before] if before and standing[stage.source].word != "done" else []
                run.gate.unlink(missing_ok=True)
                gate_job = queue.submit_script(run, recipe, "gate", GATE_COMMAND, after=waits)
                after = [gate_job]
            submission = queue.submit(run, after=after)
            note_submission(run, submission)
            stages = list(campaign.stages)
            stages[index] = replace(stage, gate_job=gate_job, job=submission.job_id)
            campaign = replace(campaign, stages=tuple(stages))
            campaign.write()
            submitted.append(stage.name)
        return campaign, submitted


def statuses(campaign: Campaign, *, must_answer: bool = False) -> list[StageStatus]:
    """Where each stage stands; the scheduler is asked once for the stages and once for the gates.

    Raises:
        EnvironmentFault: the scheduler does not answer, and it ``must_answer``.
    """
    jobs, unasked = jobs_of([campaign.run_of(stage) for stage in campaign.stages])
    if unasked and must_answer:
        raise EnvironmentFault(unasked_start(unasked))
    by_run = {job.run.root.name: job for job in jobs}
    gate_ids = [stage.gate_job for stage in campaign.stages if stage.gate_job]
    gates: Mapping[str, JobState] = {}
    scheduler = next((job.submission.scheduler for job in jobs if not job.unreadable), None)
    if gate_ids and scheduler:
        try:
            gates = scheduler_of(scheduler).states(gate_ids)
        except EnvironmentFault:  # gate.json tells most
            gates = {}
    return [
        _status(campaign, stage, by_run.get(stage.run), gates.get(stage.gate_job or "")) for stage in campaign.stages
    ]


def _status(campaign: Campaign, stage: Stage, job: Job | None, gate: JobState | None) -> StageStatus:
    run = campaign.run_of(stage)
    verdict = read_gate(run)
    if run.is_complete():
        word, why = "done", ""
    elif verdict is not None and not verdict.passed:
        word, why = "held", "; ".join(verdict.faults)
    elif job is None:
        word, why = "planned", ""
    else:
        word, why = job.word, job.why
    return StageStatus(stage=stage, job=job, gate=gate, word=word, why=why)


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
    """A stage with its run's name, compiled to begin from the run of the stage that its recipe names."""
    overrides = (*entry.overrides, *words)
    try:
        recipe = load(entry.recipe, overrides, cluster=cluster).recipe
        if more := entry.for_engine.get(recipe.engine):
            recipe = load(entry.recipe, (*entry.overrides, *more, *words), cluster=cluster).recipe
        runs = {stage.name: stage.run for stage in before}
        source, begins_from = None, recipe.checkpoint.source
        if begins_from.startswith("stage:"):
            source = begins_from.removeprefix("stage:")
            if source not in runs:
                rule = "names no stage before this one"
                raise RefusedInput([Fault(path="checkpoint.from", value=begins_from, rule=rule, nearest=tuple(runs))])
            recipe = _begun_from(recipe, f"run:{runs[source]}")
        compiled = prepare(recipe, base)
        if not dry:
            known = [f for f in inputs.missing(compiled.recipe, root) if source is None or f.path != "checkpoint.from"]
            refuse_what_cannot_start([compiled], known, root, shown=entry.recipe)
    except RefusedInput as refused:
        raise RefusedInput([replace(f, rule=f"stage {entry.name}: {f.rule}") for f in refused.faults]) from refused
    run = new_run_id(recipe.name)
    return Stage(name=entry.name, recipe=entry.recipe, overrides=overrides, source=source, run=run), compiled


def _begun_from(recipe: Recipe, source: str) -> Recipe:
    data = recipe.as_data()
    data["checkpoint"]["from"] = source
    return Recipe.from_data(data)


def _same(known: Campaign, file: CampaignFile, words: Sequence[str]) -> None:
    asked = [(entry.name, entry.recipe, (*entry.overrides, *words)) for entry in file.stages]
    if asked != [(stage.name, stage.recipe, stage.overrides) for stage in known.stages]:
        raise RefusedInput(
            f"campaign {known.name} was begun with other stages or overrides ({known.root}): give this one another "
            "name; its first stage can begin where an old one ended, with checkpoint.from=run:RUN"
        )


def _tuples(value: Any) -> Any:
    """Lists to tuples, which the strict model wants."""
    if isinstance(value, dict):
        return {key: _tuples(v) for key, v in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
