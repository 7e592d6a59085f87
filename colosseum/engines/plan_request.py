"""Plans as ``colosseum plan`` asks for them: of a named recipe with overrides, one, or one a line of a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from colosseum.engines.registry import engine_of
from colosseum.engines.releases import image_warnings
from colosseum.errors import Fault, RefusedInput
from colosseum.planning.constants import Calibration, calibration_for
from colosseum.planning.nearmiss import NearMisses, near_misses
from colosseum.planning.plan import Plan
from colosseum.planning.resolve import alternatives, free_layout, resolve
from colosseum.recipe import rules
from colosseum.recipe.load import load
from colosseum.recipe.schema import Recipe
from colosseum.terminal import is_text

MAX_LINE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What is asked of each plan."""

    name: str
    overrides: tuple[str, ...]
    cluster: str | None
    calibration: Calibration | None
    """None = the shipped one of the recipe's hardware."""
    top: int
    """Number of other layouts to explain."""
    free: bool
    """The planner chooses the whole layout."""

    def recipe(self) -> tuple[Recipe, tuple[str, ...]]:
        """The recipe and its warnings."""
        recipe, warnings = self._loaded()
        return engine_of(recipe.engine).pinned(recipe), (*warnings, *image_warnings(recipe))

    def _loaded(self) -> tuple[Recipe, tuple[str, ...]]:
        """The recipe as its file has it; ``free``: without its layout, which then need not be legal."""
        try:
            loaded = load(self.name, self.overrides, cluster=self.cluster)
        except RefusedInput as refused:
            if not self.free or not isinstance(refused.subject, Recipe):
                raise
            broken = {fault.rule for fault in rules.faults(refused.subject)}
            if any(fault.rule not in broken for fault in refused.faults):  # more than the recipe's own rules
                raise
            recipe = free_layout(refused.subject)
            if faults := rules.faults(recipe):
                raise RefusedInput(faults, subject=recipe) from None
            return recipe, ()
        return free_layout(loaded.recipe) if self.free else loaded.recipe, loaded.warnings

    def solve(self, recipe: Recipe) -> Plan:
        """The plan; where the recipe leaves nothing open, with the layouts it rules out."""
        constants = self._constants(recipe)
        found = resolve(recipe, constants, top=self.top)
        if found.rejected:
            return found
        return found.model_copy(update={"rejected": alternatives(recipe, found, constants, self.top)})

    def plan(self) -> tuple[Recipe, tuple[str, ...], Plan]:
        """The recipe, its warnings and its plan.

        Raises:
            NearMisses: the recipe is illegal, and legal ones are near.
            RefusedInput: it is illegal, and none is near.
        """
        try:
            recipe, warnings = self.recipe()
            return recipe, warnings, self.solve(recipe)
        except RefusedInput as refused:
            subject = refused.subject
            misses = near_misses(subject, self._constants(subject)) if isinstance(subject, Recipe) else []
            raise NearMisses(refused, misses) if misses else refused from None

    def _constants(self, recipe: Recipe) -> Calibration:
        return self.calibration or calibration_for(recipe.hardware.name)


def plan_lines(request: PlanRequest, path: Path) -> Iterator[dict[str, Any]]:
    """A JSON document for each line of a file (``-`` = stdin), in its order; a refusal is one too."""
    for number, text in _lines(path):
        key: Any = None
        try:
            key, overrides = _request_of_line(text, number)
            one = replace(request, overrides=(*request.overrides, *overrides))
            answer = one.solve(one.recipe()[0]).as_json()
        except RefusedInput as refused:
            answer = refused.as_json()
        yield {"schema": answer.pop("schema"), "id": key, **answer}


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


def _request_of_line(text: str, number: int) -> tuple[Any, list[str]]:
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


def gpu_counts(text: str | None) -> list[int]:
    """GPU counts of ``--gpus``.

    Raises:
        RefusedInput: not a list of whole numbers above 0.
    """
    words = [] if text is None else [w.strip() for w in text.split(",")]
    if any(not w.isascii() or not w.isdigit() or not 0 < int(w[:12]) <= 10**7 for w in words) or len(words) > 100:
        rule = "must be a number of GPUs, or up to 100 numbers separated by commas, such as 64,512,2880"
        raise RefusedInput([Fault(path="--gpus", value=text, rule=rule, where="command line")])
    return [int(w) for w in words]
