"""``colosseum plan``: a recipe's layout, memory, time and cost; near misses, scaling, sweeps. Nothing is started."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colosseum.cli.arguments import RecipeWords, recipe_and_overrides
from colosseum.cli.output import Cluster, Json, document, stdout, warn
from colosseum.errors import Fault, RefusedInput
from colosseum.terminal import is_text

if TYPE_CHECKING:
    from colosseum.planning.constants import Calibration
    from colosseum.planning.nearmiss import NearMiss
    from colosseum.planning.plan import Plan
    from colosseum.planning.scaling import ScalePoint
    from colosseum.recipe.schema import Recipe

SCALING_SCHEMA = "colosseum.scaling/1"
MAX_LINE = 1_000_000


class NearMisses(RefusedInput):
    """A refusal with the legal recipes nearest to what was asked for."""

    def __init__(self, refused: RefusedInput, misses: Sequence[NearMiss]) -> None:
        super().__init__(refused.faults, subject=refused.subject)
        self.misses = tuple(misses)

    def as_json(self) -> dict[str, Any]:
        near = [
            {
                "overrides": [f"{path}={value}" for path, value in miss.changes],
                "fits": miss.fits,
                "step_time_s": miss.step_time_s,
                "tokens_per_day": miss.tokens_per_day,
            }
            for miss in self.misses
        ]
        return {**super().as_json(), "near": near}


def plan(
    words: RecipeWords,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="N[,M]...", help="Plan for N GPUs; several values give a scaling table."),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=0, max=1000, help="Number of other layouts to explain.")] = 5,
    free: Annotated[
        bool,
        typer.Option("--free", help="Let the planner choose the whole layout, also the fields that the recipe fixes."),
    ] = False,
    batch: Annotated[
        Path | None,
        typer.Option(
            "--batch",
            metavar="FILE",
            help='Plan each line {"id": ..., "overrides": [...]} of FILE (- is stdin); prints one JSON line each.',
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", metavar="FILE", help="Constants measured with `colosseum calibrate`."),
    ] = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Choose what a recipe leaves open; predict memory, time and cost."""
    from colosseum.planning.constants import read_calibration

    name, overrides = recipe_and_overrides(words)
    measured = None if calibration is None else read_calibration(calibration)
    task = _Task(name=name, overrides=tuple(overrides), cluster=cluster, calibration=measured, top=top, free=free)
    counts = _counts(gpus)
    if batch is not None:
        if counts:
            raise RefusedInput("--batch cannot be combined with --gpus: put resources.gpus=N in the overrides")
        _batch(task, batch)
    elif len(counts) > 1:
        _scaling(task, counts, as_json)
    else:
        _one(dataclasses.replace(task, overrides=(*overrides, *(f"resources.gpus={n}" for n in counts))), as_json)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What the command line asks of each plan."""

    name: str
    overrides: tuple[str, ...]
    cluster: str | None
    calibration: Calibration | None
    top: int
    free: bool

    def recipe(self) -> tuple[Recipe, tuple[str, ...]]:
        """The recipe and its warnings."""
        from colosseum.engines.registry import engine_of
        from colosseum.planning.resolve import free_layout
        from colosseum.recipe.load import load

        loaded = load(self.name, self.overrides, cluster=self.cluster)
        recipe = free_layout(loaded.recipe) if self.free else loaded.recipe
        return engine_of(recipe.engine).pinned(recipe), loaded.warnings

    def calibration_of(self, recipe: Recipe) -> Calibration:
        from colosseum.planning.constants import calibration_for

        return self.calibration or calibration_for(recipe.hardware.name)

    def solve(self, recipe: Recipe) -> Plan:
        """The plan; where the recipe leaves nothing open, with the layouts it rules out."""
        from colosseum.planning.resolve import alternatives, resolve

        constants = self.calibration_of(recipe)
        found = resolve(recipe, constants, top=self.top)
        if found.rejected:
            return found
        return found.model_copy(update={"rejected": alternatives(recipe, found, constants, self.top)})


def _counts(text: str | None) -> list[int]:
    """GPU counts of ``--gpus``.

    Raises:
        RefusedInput: not a list of whole numbers above 0.
    """
    words = [] if text is None else [w.strip() for w in text.split(",")]
    if any(not w.isascii() or not w.isdigit() or not 0 < int(w[:12]) <= 10**7 for w in words) or len(words) > 100:
        rule = "must be a number of GPUs, or up to 100 numbers separated by commas, such as 64,512,2880"
        raise RefusedInput([Fault(path="--gpus", value=text, rule=rule, where="command line")])
    return [int(w) for w in words]


def _one(task: _Task, as_json: bool) -> None:
    try:
        recipe, warnings = task.recipe()
        found = task.solve(recipe)
    except RefusedInput as refused:
        misses = _near_misses(refused, task)
        if misses and not as_json:
            _show_near_misses(refused.subject, misses)
        raise NearMisses(refused, misses) if misses else refused from None
    warn(warnings)
    if as_json:
        document(found.as_json())
        return
    from colosseum.cli.plan_text import show

    show(stdout(), task.name, recipe, found)


def _near_misses(refused: RefusedInput, task: _Task) -> list[NearMiss]:
    from colosseum.planning.nearmiss import near_misses
    from colosseum.recipe.schema import Recipe

    subject = refused.subject
    return near_misses(subject, task.calibration_of(subject)) if isinstance(subject, Recipe) else []


def _show_near_misses(recipe: Recipe, misses: Sequence[NearMiss]) -> None:
    from colosseum.planning.nearmiss import idle_nodes

    console = stdout()
    console.print("This recipe is not valid. Nearest valid ones, most tokens per day first:")
    for miss in misses:
        console.print(f"  {miss.sentence()}", markup=False)
    if sentence := idle_nodes(recipe):
        console.print(sentence, markup=False)


def _scaling(task: _Task, counts: Sequence[int], as_json: bool) -> None:
    from colosseum.planning.scaling import scaling_table

    recipe, warnings = task.recipe()
    points = scaling_table(recipe, counts, dataclasses.replace(task, top=0).solve)
    warn(warnings)
    if as_json:
        document({"schema": SCALING_SCHEMA, "points": [_point(p) for p in points]})
        return
    from colosseum.cli.plan_text import show_scaling

    show_scaling(stdout(), points)


def _point(point: ScalePoint) -> dict[str, Any]:
    found = None if point.plan is None else point.plan.as_json()
    return {"gpus": point.gpus, "gbs": point.gbs, "kind": point.kind, "plan": found, "reason": point.reason or None}


def _batch(task: _Task, path: Path) -> None:
    """One JSON line for each line of the file, in its order; a refusal is a line too."""
    for number, text in _lines(path):
        key: Any = None
        try:
            key, overrides = _point_overrides(text, number)
            one = dataclasses.replace(task, overrides=(*task.overrides, *overrides))
            answer = one.solve(one.recipe()[0]).as_json()
        except RefusedInput as refused:
            answer = refused.as_json()
        document({"schema": answer.pop("schema"), "id": key, **answer})


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines by number, blank ones left out; one that is too long is cut, which makes it no JSON."""
    stream = sys.stdin.buffer if str(path) == "-" else path.open("rb")
    with stream:
        for number, raw in enumerate(iter(lambda: stream.readline(MAX_LINE), b""), start=1):
            rest = raw
            while len(rest) == MAX_LINE and not rest.endswith(b"\n"):
                rest = stream.readline(MAX_LINE)
            if raw.strip():
                yield number, raw.decode("utf-8", errors="replace")


def _point_overrides(text: str, number: int) -> tuple[Any, list[str]]:
    """Id and overrides of a line.

    Raises:
        RefusedInput: the line has another form.
    """
    try:
        data = json.loads(text)
        json.dumps(data, allow_nan=False)  # the id is written back: NaN and 1e999 are no JSON
    except (ValueError, RecursionError):
        data = None
    overrides = data.get("overrides", []) if isinstance(data, dict) else None
    known = isinstance(data, dict) and data.keys() <= {"id", "overrides"} and isinstance(overrides, list)
    if not known or any(not isinstance(word, str) or not is_text(word) for word in overrides or ()):
        rule = 'a line is {"id": ..., "overrides": ["key=value", ...]}'
        raise RefusedInput([Fault(path="", value=text[:200], rule=rule, where=f"line {number}")])
    return data.get("id"), list(overrides or ())
