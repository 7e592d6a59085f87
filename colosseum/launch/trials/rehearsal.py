"""A recipe on a few processes of this machine before it costs a cluster: train, save, resume twice, compare.

The figures are compared in ``verdict``, which is pure; the runs are ordinary run folders and stay for a look.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from colosseum.atomic import write_whole
from colosseum.bundle import to_json
from colosseum.data.byte_tokenizer import write_byte_tokenizer
from colosseum.data.demo_alignment import write_alignment
from colosseum.data.demo_corpus import languages
from colosseum.data.indexed import bin_path, write_dataset
from colosseum.engines.planned import resolved
from colosseum.errors import RefusedInput
from colosseum.launch.bundles.compile import Lineage
from colosseum.launch.bundles.inputs import checkpoint_reference, with_absolute_paths
from colosseum.launch.local.processes import MAX_CPU_RANKS
from colosseum.launch.runs.submit import launch, prepare
from colosseum.launch.schedulers.base import Foreground, Say
from colosseum.launch.schedulers.registry import this_machine
from colosseum.planning.shrink import SAVE_AT, STEPS, VOCAB, Decision, Shrunk, shrink
from colosseum.reading import Unreadable, read_object
from colosseum.recipe.derived import layout_text
from colosseum.recipe.hash import recipe_hash
from colosseum.recipe.load import load
from colosseum.recipe.schema import Checkpoint, Recipe
from colosseum.recipe.source import Fresh
from colosseum.rundir import RunDir, latest_rows, saved_steps

REHEARSAL_SCHEMA = "colosseum.rehearsal/1"
MIN_RANKS = 2
DOCUMENTS = 200
END_OF_DOCUMENT = VOCAB - 1
"""What a tokenizer of kind null has as its end-of-document token."""
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
"""Largest difference of a loss under another layout: sums come in another order."""

Losses = Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one run of a rehearsal left behind."""

    run: RunDir
    failure: str | None
    """Why it did not reach its last step."""
    losses: Losses
    """By step."""
    validations: Losses
    saved: tuple[int, ...]
    consumed_samples: int | None
    """At the last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that a rehearsal proves."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The verdict and what it rests on."""

    recipe: str
    recipe_hash: str
    rehearsed_hash: str
    """See ``identity``."""
    shrunk: Shrunk
    checks: tuple[Check, ...]
    runs: tuple[RunDir, ...]
    time_s: float

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return self.shrunk.decisions

    def as_json(self) -> dict[str, Any]:
        """The rehearsal.json of docs/contracts.md."""
        return {
            "schema": REHEARSAL_SCHEMA,
            "recipe": self.recipe,
            "recipe_hash": self.recipe_hash,
            "rehearsed_hash": self.rehearsed_hash,
            "passed": self.passed,
            "checks": [asdict(check) for check in self.checks],
            "decisions": [asdict(decision) for decision in self.decisions],
            "runs": [str(run.root) for run in self.runs],
            "time_s": round(self.time_s, 1),
        }


def rehearse(recipe: Recipe, runs: Path, *, shown: str, ranks: int, base: Path, say: Say) -> Rehearsal:
    """Runs the shrunk recipe three times: through, resumed as it was, resumed under another layout.

    Args:
        recipe: as loaded; it may hold ``auto``.
        shown: the recipe's name as the user typed it.
        ranks: processes to use at most.
        base: relative paths are read from here.
        say: is given a sentence when a part begins.

    Returns:
        The verdict, written to rehearsal.json of the first run's folder too.

    Raises:
        RefusedInput: ``ranks`` is out of range.
    """
    if not MIN_RANKS <= ranks <= MAX_CPU_RANKS:
        raise RefusedInput(f"--ranks {ranks}: must be {MIN_RANKS} to {MAX_CPU_RANKS}")
    began = time.monotonic()
    full = full_recipe(recipe, base)
    shrunk = shrink(full, ranks, **_this_machine())
    first = _with_data(shrunk.recipe, runs / "rehearsal-data")
    other = _with_data(shrunk.other_layout, runs / "rehearsal-data")
    scheduler = this_machine()
    if first.preference is not None:
        say(f"training an initial policy on {first.resources.gpus} processes")
        began_from = _try(first, None, runs, scheduler).run
        first, other = (_from_policy(small, began_from) for small in (first, other))
    say(f"training {STEPS} steps on {first.resources.gpus} processes: {_layout_of(first)}")
    trials = [_try(first, None, runs, scheduler)]
    if SAVE_AT in trials[0].saved:
        for resumed in (first, other):
            say(f"resuming from step {SAVE_AT} on {resumed.resources.gpus} processes: {_layout_of(resumed)}")
            trials.append(_try(resumed, trials[0].run, runs, scheduler))
    rehearsal = Rehearsal(
        recipe=shown,
        recipe_hash=recipe_hash(full),
        rehearsed_hash=identity(full),
        shrunk=shrunk,
        checks=tuple(verdict(trials, first.precision.dtype)),
        runs=tuple(trial.run for trial in trials),
        time_s=time.monotonic() - began,
    )
    write_whole(trials[0].run.rehearsal, to_json(rehearsal.as_json()))
    return rehearsal


def full_recipe(recipe: Recipe, base: Path) -> Recipe:
    """The recipe as a launch would compile it: paths with_absolute_paths, layout resolved."""
    return resolved(with_absolute_paths(recipe, base))


def identity(recipe: Recipe) -> str:
    """Hash of what a rehearsal proves: the recipe except for the checkpoint it starts from."""
    return recipe_hash(recipe.starting_from(Fresh()))


def passed_rehearsal(recipe: Recipe, runs: Path) -> bool:
    """Whether a rehearsal of this compiled recipe has passed under ``runs``."""
    digest = identity(recipe)
    for file in runs.glob(f"*/{RunDir(Path()).rehearsal.name}"):
        with suppress(FileNotFoundError, Unreadable):
            data = read_object(file)
            if data.get("rehearsed_hash") == digest and data.get("passed") is True:
                return True
    return False


def require_rehearsal(recipe: Recipe, runs: Path, *, shown: str) -> None:
    """Raises RefusedInput: no rehearsal of this compiled recipe, named ``shown``, has passed under ``runs``."""
    if not passed_rehearsal(recipe, runs):
        command = f"colosseum rehearse {shown} with the same recipe and overrides"
        raise RefusedInput(f"no rehearsal of this recipe has passed under {runs}: {command}")


def verdict(trials: list[Trial], dtype: str) -> Iterator[Check]:
    """What the trials prove: the first is the run without a break, the others were resumed from its checkpoint."""
    through = trials[0]
    losses = through.losses
    finite = [step for step in range(1, STEPS + 1) if math.isfinite(losses.get(step, math.nan))]
    trained = through.failure is None and len(finite) == STEPS
    yield Check(
        name="trains",
        passed=trained,
        detail=f"{STEPS} steps, loss {losses[1]:.4f} → {losses[STEPS]:.4f}"
        if trained
        else through.failure or f"finite losses at {len(finite)} of {STEPS} steps",
    )
    validated = [step for step, loss in sorted(through.validations.items()) if math.isfinite(loss)]
    yield Check(
        name="validates",
        passed=SAVE_AT in validated,
        detail=f"at steps {', '.join(map(str, validated))}" if validated else "no validation loss",
    )
    yield Check(
        name="saves",
        passed=SAVE_AT in through.saved,
        detail=f"checkpoints of steps {', '.join(map(str, through.saved))}" if through.saved else "no checkpoint",
    )
    names = ("resumes exactly", "resumes under another layout")
    for name, tolerance, trial in zip(names, (0.0, TOLERANCE[dtype]), trials[1:], strict=False):
        yield _compared(name, through, trial, tolerance)


def _compared(name: str, through: Trial, resumed: Trial, tolerance: float) -> Check:
    if resumed.failure is not None:
        return Check(name=name, passed=False, detail=resumed.failure)
    steps = range(SAVE_AT + 1, STEPS + 1)
    differences = {step: abs(resumed.losses.get(step, math.nan) - through.losses.get(step, math.nan)) for step in steps}
    worst = max(steps, key=lambda step: math.inf if math.isnan(differences[step]) else differences[step])
    if not differences[worst] <= tolerance:
        pair = f"{resumed.losses.get(worst)} and {through.losses.get(worst)} without interruption"
        return Check(name=name, passed=False, detail=f"loss of step {worst}: {pair} (allowed: {tolerance:g})")
    if resumed.consumed_samples != through.consumed_samples:
        pair = f"{resumed.consumed_samples} and {through.consumed_samples} without interruption"
        return Check(name=name, passed=False, detail=f"samples consumed at step {STEPS}: {pair}")
    same = f"losses of steps {steps[0]} to {steps[-1]}"
    text = "are equal" if tolerance == 0 else f"differ by {differences[worst]:.1e} at most (allowed: {tolerance:g})"
    return Check(name=name, passed=True, detail=f"{same} {text}")


# --- the runs ----------------------------------------------------------------------------------------------------


def _this_machine() -> dict[str, Any]:
    host = load("debug/cpt-4k-bf16", ["cluster=local"]).recipe
    return {"hardware": host.hardware, "cluster": host.cluster}


def _layout_of(recipe: Recipe) -> str:
    """Of a recipe whose layout is resolved."""
    par = recipe.parallelism
    tp, pp, vpp, cp = (int(size) for size in (par.tp, par.pp, par.vpp, par.cp))
    return layout_text(tp, pp, vpp, cp, recipe.resources.gpus // (tp * pp * cp))


def _with_data(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with its placeholder sources written as datasets of bytes, each its own part of the corpus."""
    data = recipe.as_data()
    if recipe.alignment is not None:
        write_alignment(folder.resolve())
        controls = [text for text in data["task"]["chat_tokens"].values() if text.strip()]
        tokenizer = folder.resolve() / "tokenizer.json"
        write_byte_tokenizer(tokenizer, sorted({*controls, recipe.tokenizer.eod}))
        data["tokenizer"]["path"] = str(tokenizer)
        for name in ("train", "validation"):
            data["data"][name] = str(folder.resolve() / data["data"][name])
        return Recipe.from_data(data)
    blend = data["data"]["blend"]
    for i, entry in enumerate(blend):
        prefix = folder.resolve() / f"{entry['path']}-of-{len(blend)}"
        entry["path"] = str(prefix)
        if bin_path(prefix).exists():
            continue
        with write_dataset(prefix, VOCAB, force=True) as writer:
            for number, text in enumerate(languages()):
                if number % len(blend) == i and writer.documents < DOCUMENTS:
                    writer.add_document([*text.encode(), END_OF_DOCUMENT])
    return Recipe.from_data(data)


def _from_policy(recipe: Recipe, run: RunDir) -> Recipe:
    """A DPO recipe that begins with a run's weights, its reference also where it is resumed."""
    data = recipe.as_data()
    data["checkpoint"].update({"from": str(run.root.resolve()), "load": ["weights"]})
    data["task"]["reference_from"] = str(run.root.resolve())
    return Recipe.from_data(data)


def _try(recipe: Recipe, parent: RunDir | None, runs: Path, scheduler: Foreground) -> Trial:
    """One run to its end; begun from ``parent``'s checkpoint of the middle, if there is a parent."""
    lineage = None
    if parent is not None:
        reference, step = checkpoint_reference(parent, SAVE_AT, runs)
        data = recipe.as_data()
        data["checkpoint"].update({"from": str(reference), "load": list(Checkpoint.model_fields["load"].default)})
        recipe, lineage = Recipe.from_data(data), Lineage(run=parent.root.name, step=step)
    compiled = prepare(recipe, runs, lineage=lineage)
    run, submission = launch(compiled, scheduler, runs, shown=recipe.name)
    scheduler.follow(run, submission.job_id, lambda _: None, lambda _: None)
    attempt = run.attempt_of(submission.job_id)
    outcome = attempt.read_outcome() if attempt else None
    if outcome is None:
        failure: str | None = f"ended before its first step; see {run.logs}"
    elif outcome.kind == "completed":
        failure = None
    else:
        failure = f"{outcome.kind.replace('_', ' ')} at step {outcome.step}: {outcome.reason}"
    rows = latest_rows(run.metrics, "train")
    return Trial(
        run=run,
        failure=failure,
        losses={row["step"]: row["loss"] for row in rows},
        validations={row["step"]: row["loss"] for row in latest_rows(run.metrics, "val")},
        saved=tuple(saved_steps(run.checkpoints)),
        consumed_samples=rows[-1]["consumed_samples"] if rows else None,
    )
