"""A campaign's YAML file: the stages, their recipes and overrides."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from pydantic import ValidationError

from colosseum.errors import Fault, RefusedInput
from colosseum.launch.campaigns import conditions
from colosseum.recipe import site
from colosseum.recipe.base import EngineName, Name, Section, Text, tuples
from colosseum.recipe.scan import read_text, scan
from colosseum.recipe.wording import rule_of


class StageFile(Section):
    """One stage as a file names it."""

    name: Name
    recipe: Text
    overrides: tuple[Text, ...] = ()
    for_engine: Mapping[EngineName, tuple[Text, ...]] = {}
    """More overrides where the stage runs with this engine; the command's own come after them."""
    gate: Mapping[Text, Text] = {}
    """Conditions on the checkpoint that the stage begins from, by task (`conditions.py`)."""


class CampaignFile(Section):
    """A campaign's YAML file."""

    name: Name
    stages: tuple[StageFile, ...]


def read_file(name: str) -> CampaignFile:
    """A campaign's YAML file, or a shipped one by its name.

    Raises:
        RefusedInput: with every fault of the file.
    """
    path = Path(name)
    shipped = resources.files("colosseum.recipes").joinpath("campaigns", f"{path.stem}.yaml")
    if not path.is_file() and ("/" in name or not shipped.is_file()):
        raise RefusedInput([Fault(path="FILE", value=name, rule="no such campaign file", where="command line")])
    scanned = scan(read_text(path, name) if path.is_file() else shipped.read_text(), name)
    if scanned.faults:
        raise RefusedInput(scanned.faults)
    try:
        found = CampaignFile.model_validate(tuples(scanned.data))
    except ValidationError as error:
        raise RefusedInput(
            [
                Fault(
                    path=".".join(map(str, e["loc"])),
                    value=None if e["type"] == "missing" else e["input"],
                    rule=rule_of(e),
                    where=name,
                )
                for e in error.errors(include_url=False)
            ]
        ) from error
    if faults := _site_faults(found, name):
        raise RefusedInput(faults)
    for stage in found.stages:
        for key, text in stage.gate.items():
            conditions.parse(key, text, name)
    names = [stage.name for stage in found.stages]
    if not names or len(set(names)) < len(names):
        raise RefusedInput(
            [
                Fault(
                    path="stages", value=names, rule="needs at least one stage, and each needs its own name", where=name
                )
            ]
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
