"""Composed data -> Recipe, or every fault at once: types, ranges, unfilled ``???``, then the rules between fields."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from pydantic import ValidationError

from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.provenance import MAX_FAULTS, Provenance, faults_of
from colosseum.recipe.schema import Recipe
from colosseum.recipe.site import secret_faults


def check(data: dict[str, Any], provenance: Provenance, faults: list[Fault]) -> Recipe:
    """Check types and ranges, then the rules between fields; raise all faults at once.

    Fields with a fault are reset to their defaults and the recipe is checked again, to find faults in other fields too.
    """
    from colosseum.recipe import rules  # imported here: listing recipes and clusters needs no rules

    if not data.keys() - {"cluster"}:
        rule = "the recipe is empty; begin it with a defaults list, such as `defaults: [debug/cpt-4k-bf16, _self_]`"
        raise RefusedInput([*faults, Fault(path="", value=None, rule=rule)])
    faults = [*faults, *_by_python_name(data, provenance), *_missing_values(data, provenance)]
    dropped = {fault.path for fault in faults}
    recipe = whole = None
    try:
        recipe = whole = Recipe.from_data(data)
    except ValidationError as error:
        found = [f for f in faults_of(error, data, provenance) if f.path not in dropped]
        faults += found
        dropped |= {fault.path for fault in found}
        for path in dropped:
            if path:
                _drop(data, path.split("."))
        try:
            recipe = Recipe.from_data(data)
        except ValidationError:
            recipe = None
    if recipe is not None:
        rest = [
            f
            for f in [*rules.faults(recipe), *secret_faults(recipe)]
            if not any(_is_inside(f.path, path) or _mentions(f.rule, path) for path in dropped if path)
        ]
        if not faults and not rest:
            return recipe
        faults += [with_location(fault, provenance) for fault in rest]
    more = [Fault(path="", value=None, rule=f"and {len(faults) - MAX_FAULTS} more faults")] * (len(faults) > MAX_FAULTS)
    raise RefusedInput(faults[:MAX_FAULTS] + more, subject=whole)


def with_location(fault: Fault, provenance: Provenance) -> Fault:
    if fault.where:
        return fault
    return dataclasses.replace(fault, where=provenance.where(fault.path))


def _by_python_name(data: dict[str, Any], provenance: Provenance) -> list[Fault]:
    """Refuse the Python names of two fields: in a recipe they are called ``from`` and ``async``."""
    section = data.get("checkpoint")
    found = []
    for python, alias in (("source", "from"), ("async_save", "async")):
        if isinstance(section, dict) and python in section:
            path = f"checkpoint.{python}"
            found.append(
                Fault(path=path, value=None, rule="unknown key", nearest=(alias,), where=provenance.where(path))
            )
            del section[python]
    return found


def _missing_values(node: Any, provenance: Provenance, path: tuple[str, ...] = ()) -> list[Fault]:
    """``???`` marks what a user must fill in."""
    if isinstance(node, dict):
        return [f for key, value in node.items() for f in _missing_values(value, provenance, (*path, key))]
    if isinstance(node, list):
        return [f for i, value in enumerate(node) for f in _missing_values(value, provenance, (*path, str(i)))]
    if node != "???":
        return []
    dotted = ".".join(path)
    return [Fault(path=dotted, value="???", rule="must be given", where=provenance.where(dotted))]


def _drop(data: Any, path: list[str]) -> None:
    for part in path[:-1]:
        data = data.get(part) if isinstance(data, dict) else None
    if isinstance(data, dict):
        data.pop(path[-1], None)


def _mentions(rule: str, path: str) -> bool:
    """Whether a rule compares with a field, which it then names."""
    return re.search(rf"(?<![\w.]){re.escape(path)}(?![\w.])", rule) is not None


def _is_inside(path: str, dropped: str) -> bool:
    return path == dropped or path.startswith(f"{dropped}.") or dropped.startswith(f"{path}.")
