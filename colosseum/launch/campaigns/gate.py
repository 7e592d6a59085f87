"""``python -m colosseum.launch.campaigns.gate``: the check between two stages, run in the next one's folder.

It compares the checkpoint that the stage starts from with what the stage expects: a sentence for each difference,
and the lineage from the first run to here. Needs neither torch nor a GPU: a job of seconds.
A stage with more layers has its checkpoint expanded first, into the run's ``grown`` folder, and another engine's
checkpoint is converted, into ``converted`` (with torch, on the CPU).
"""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from colosseum.atomic import write_whole
from colosseum.bundle import MANIFEST, read_bundle, to_json
from colosseum.checkpoint.compare import load_faults, load_notes
from colosseum.checkpoint.folders import newest_committed, read_metadata
from colosseum.checkpoint.metadata import CheckpointMetadata, ModelShape
from colosseum.engines.registry import engine_of
from colosseum.errors import ColosseumError, RefusedInput
from colosseum.launch.bundles.inputs import no_conversion
from colosseum.launch.campaigns import conditions, converting, growing
from colosseum.reading import Unreadable, read_bytes, read_object
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import FromRun
from colosseum.records import text, whole
from colosseum.rundir import CHECKPOINT_MARK, EXIT_FINAL, RunDir, checkpoint_folder, read_lines
from colosseum.terminal import clean
from colosseum.units import format_count

GATE_SCHEMA = "colosseum.gate/1"
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """A checkpoint on the way from the first run to this one."""

    run: str
    step: int
    recipe_hash: str
    checkpoint_hash: str
    """sha256 of its colosseum.json, which holds a checksum of every file."""
    consumed_tokens: int
    tokens_by_source: dict[str, int]

    def sentence(self) -> str:
        sources = ", ".join(f"{Path(name).name} {format_count(n)}" for name, n in sorted(self.tokens_by_source.items()))
        return (
            f"{self.run} step {self.step:,}: recipe {self.recipe_hash[:12]}, checkpoint {self.checkpoint_hash[:12]}, "
            f"{format_count(self.consumed_tokens)} tokens so far ({sources or 'no source named'})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a gate."""

    faults: tuple[str, ...]
    notes: tuple[str, ...]
    lineage: tuple[Ancestor, ...]
    expands: bool = False
    """The checkpoint has fewer layers than the stage."""
    converts: str | None = None
    """Another engine's checkpoint that is converted, by path."""

    @property
    def passed(self) -> bool:
        return not self.faults


def judge(run: RunDir) -> Verdict:
    """Checks the checkpoint that ``run`` starts from.

    Raises:
        RefusedInput: the run's bundle was changed, or does not start from a run in the same folder.
    """
    recipe = read_bundle(run.bundle).recipe
    source = recipe.checkpoint.source
    if not isinstance(source, FromRun):
        raise RefusedInput(
            f"{run.root.name} starts from {source}, which is not a run: a gate checks the checkpoint of a run"
        )
    parent = RunDir(run.root.resolve().parent / source.run)
    faults = [] if source.step is not None or parent.is_complete() else [f"{source.run} has not reached its last step"]
    its = read_bundle(parent.bundle).recipe
    if not engine_of(its.engine).has_metadata:
        if conditions.read_conditions(run):
            faults.append(f"gate: scores of {its.engine}'s checkpoints are not known here")
        return _of_foreign(recipe, parent, its, faults)
    step = newest_committed(parent.checkpoints) if source.step is None else source.step
    if step is None:
        return Verdict(faults=(*faults, f"{source.run} has no complete checkpoint"), notes=(), lineage=())
    try:
        metadata = read_metadata(checkpoint_folder(parent.checkpoints, step))
    except RefusedInput as refused:
        return Verdict(faults=(*faults, str(refused)), notes=(), lineage=())
    plan = growing.plan_of(recipe, metadata)
    notes = load_notes(recipe, metadata) + ([growing.sentence(metadata, plan)] if plan else [])
    handed_over = growing.as_grown(metadata, plan) if plan else metadata
    faults += load_faults(recipe, handed_over, recipe.checkpoint.load) + _ledger_faults(parent, metadata)
    failed, held = conditions.judged(conditions.read_conditions(run), conditions.At(parent, step), _before(parent))
    faults, notes = faults + failed, notes + held
    if source.step is None and (total := _total_steps(parent)) is not None and step != total:
        faults.append(
            f"the newest complete checkpoint of {source.run} is at step {step:,}, not at its last step {total:,}"
        )
    return Verdict(
        faults=tuple(faults),
        notes=tuple(notes),
        lineage=tuple(lineage(parent, step)),
        expands=plan is not None,
    )


def _expanded(run: RunDir, verdict: Verdict) -> Verdict:
    """The verdict once the checkpoint has the stage's depth; a fault says why it has not."""
    parent = verdict.lineage[-1]
    source = checkpoint_folder(RunDir(run.root.resolve().parent / parent.run).checkpoints, parent.step)
    layers = (recipe := read_bundle(run.bundle).recipe).model.num_layers
    try:
        growing.grow_into(run, recipe, source)
    except ImportError as error:
        by_hand = f"colosseum checkpoint expand {source} {run.grown.resolve()} --layers {layers}"
        moments = "" if "optimizer" in recipe.checkpoint.load else " --optimizer drop"
        rule = f"{error.name} is not installed where the gate runs: {by_hand}{moments}, then resume the campaign"
        return replace(verdict, faults=(rule,))
    except (ColosseumError, OSError) as error:
        return replace(verdict, faults=(f"the checkpoint was not expanded: {error}",))
    return verdict


def _converted(run: RunDir, verdict: Verdict) -> Verdict:
    """The verdict once the other engine's checkpoint is converted, and expanded if the stage has more layers."""
    recipe = read_bundle(run.bundle).recipe
    source = recipe.checkpoint.source
    assert isinstance(source, FromRun) and verdict.converts is not None
    its = read_bundle(RunDir(run.root.resolve().parent / source.run).bundle).recipe
    kind = str(converting.importer(its.engine, recipe.engine))
    try:
        folder = converting.convert_into(run, Path(verdict.converts), kind, its)
        metadata = read_metadata(folder)
        plan = growing.plan_of(recipe, metadata)
        handed_over = growing.as_grown(metadata, plan) if plan else metadata
        if found := load_faults(recipe, handed_over, recipe.checkpoint.load):
            return replace(verdict, faults=tuple(found))
        growing.grow_into(run, recipe, folder)
    except ImportError as error:
        rule = f"{error.name} is not installed where the gate runs, which converts {verdict.converts}"
        return replace(verdict, faults=(rule,))
    except (ColosseumError, OSError) as error:
        return replace(verdict, faults=(f"the checkpoint was not converted: {error}",))
    notes = [*verdict.notes, *load_notes(recipe, metadata)] + ([growing.sentence(metadata, plan)] if plan else [])
    return replace(verdict, notes=tuple(notes))


def _of_foreign(recipe: Recipe, parent: RunDir, its: Recipe, faults: list[str]) -> Verdict:
    """Another engine's checkpoint has no colosseum.json: its own configuration shows which model it is of, if there is
    one, else its run's recipe."""
    faults, wanted = [*faults], ModelShape.of(recipe)
    engine = engine_of(its.engine)
    left = engine.checkpoints(parent, its.batch.gbs)
    kind = converting.importer(its.engine, recipe.engine)
    if not kind and (rule := no_conversion(its.engine, recipe.engine)):
        faults.append(rule)
    elif not left:
        faults.append(f"{parent.root.name} saved no checkpoint to start from")
    if kind:
        faults += [fault.sentence() for fault in converting.faults(recipe)]
    newest = next(reversed(left.values()), None)
    if kind and newest is not None:  # its model is compared when it has been converted
        note = converting.sentence(its.engine, kind)
        return Verdict(faults=tuple(faults), notes=(note,), lineage=(), converts=str(newest))
    config = engine.model_of(newest) if newest is not None else None
    if config is None:
        note = f"the checkpoint is {its.engine}'s: only its recipe was compared, not its content"
        faults += [f"the model of the previous run differs: {d}" for d in ModelShape.of(its).differences(wanted)]
        return Verdict(faults=tuple(faults), notes=(note,), lineage=())
    for key, value in config.items():
        if value != getattr(wanted, key):
            faults.append(f"the model in {newest} differs: {key} {value} (recipe: {getattr(wanted, key)})")
    if isinstance(layers := config.get("num_layers"), int) and layers < wanted.num_layers:
        faults.append("expand it with the tools of its engine, put the result in its place, then resume the campaign")
    note = f"the checkpoint is {its.engine}'s: its configuration was compared, not its weights"
    return Verdict(faults=tuple(faults), notes=(note,), lineage=())


def _ledger_faults(parent: RunDir, found: CheckpointMetadata) -> list[str]:
    """Whether the run's ledger and the checkpoint agree on the tokens consumed."""
    rows = [row for row in read_lines(parent.ledger) if row.get("step") == found.step]
    if not rows:
        return [f"the data ledger of {parent.root.name} has no entry for step {found.step:,}"]
    if rows[-1].get("tokens_by_source") != found.tokens_by_source:
        return [
            f"the data ledger of {parent.root.name} and its checkpoint disagree on the tokens of step {found.step:,}"
        ]
    return []


def lineage(run: RunDir, step: int) -> list[Ancestor]:
    """Checkpoints from the first run to ``step`` of ``run``; it ends where a run folder is no longer there."""
    found: list[Ancestor] = []
    seen = set()
    while (run.root.name, step) not in seen:
        seen.add((run.root.name, step))
        mark = checkpoint_folder(run.checkpoints, step) / CHECKPOINT_MARK
        try:
            data = read_bytes(mark)
            metadata, digest = CheckpointMetadata.model_validate_json(data), hashlib.sha256(data).hexdigest()
        except (OSError, Unreadable, ValueError):
            break
        found.append(
            Ancestor(
                run=run.root.name,
                step=step,
                recipe_hash=metadata.recipe_hash,
                checkpoint_hash=digest,
                consumed_tokens=metadata.consumed_tokens,
                tokens_by_source=metadata.tokens_by_source,
            )
        )
        parent = _parent(run)
        if parent is None:
            break
        run, step = parent
    return found[::-1]


def _parent(run: RunDir) -> tuple[RunDir, int] | None:
    """The run and step that a run starts from, by its gate or its manifest."""
    gate = read_gate(run)
    parent = (gate.parent if gate else None) or _named(_manifest(run).get("lineage"))
    return None if parent is None else (RunDir(run.root.parent / parent[0]), parent[1])


def _before(run: RunDir) -> conditions.At | None:
    """The checkpoint that a run began from."""
    found = _parent(RunDir(run.root.resolve()))
    return None if found is None else conditions.At(*found)


def _named(row: Any) -> tuple[str, int] | None:
    """Run and step of a row that names both; the run is a name beside this one, never a path."""
    if not isinstance(row, dict):
        return None
    run, step = text(row.get("run")), whole(row.get("step"))
    return (run, step) if RUN_NAME.fullmatch(run) and step is not None else None


def _total_steps(run: RunDir) -> int | None:
    return whole(_manifest(run).get("total_steps"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """gate.json as it is read back."""

    passed: bool
    faults: tuple[str, ...]
    parent: tuple[str, int] | None
    """The run that the next began from, by name, and the step."""


def read_gate(run: RunDir) -> Passed | None:
    """gate.json of a run; None before its gate ran. If it cannot be read, the gate has not passed."""
    try:
        data = read_object(run.gate)
    except FileNotFoundError:
        return None
    except Unreadable as error:
        return Passed(passed=False, faults=(str(error),), parent=None)
    faults, lineage = data.get("faults"), data.get("lineage")
    return Passed(
        passed=data.get("passed") is True,
        faults=tuple(map(text, faults)) if isinstance(faults, list) else ("gate.json names no faults",),
        parent=_named(lineage[-1]) if isinstance(lineage, list) and lineage else None,
    )


def _manifest(run: RunDir) -> dict[str, Any]:
    """manifest.json of a run; empty if there is none to read."""
    try:
        return read_object(run.bundle / MANIFEST)
    except (FileNotFoundError, Unreadable):
        return {}


def pass_through(run: RunDir) -> Verdict:
    """Check the checkpoint, expand or convert it where the stage needs it, write gate.json and print the result."""
    verdict = judge(run)
    if verdict.passed and verdict.expands:
        verdict = _expanded(run, verdict)
    elif verdict.passed and verdict.converts is not None:
        verdict = _converted(run, verdict)
    write_whole(run.gate, to_json({"schema": GATE_SCHEMA, "passed": verdict.passed, **asdict(verdict)}))
    for ancestor in verdict.lineage:
        sys.stdout.write(f"from   {clean(ancestor.sentence())}\n")
    for note in verdict.notes:
        sys.stdout.write(f"change {clean(note)}\n")
    for fault in verdict.faults:
        sys.stdout.write(f"fault  {clean(fault)}\n")
    sys.stdout.write(f"{run.root.name}: {'gate passed' if verdict.passed else 'gate failed'}\n")
    sys.stdout.flush()
    return verdict


def main() -> int:
    """The gate of the run in the current folder; returns 0 or 76."""
    try:
        return 0 if pass_through(RunDir(Path.cwd())).passed else EXIT_FINAL
    except ColosseumError as error:
        sys.stdout.write(f"fault  {clean(str(error))}\n")
        return EXIT_FINAL


if __name__ == "__main__":
    sys.exit(main())
