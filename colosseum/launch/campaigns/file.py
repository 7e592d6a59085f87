"""A campaign's YAML file: the stages, their recipes and overrides."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from colosseum.errors import Fault, RefusedInput
from colosseum.recipe import site
from colosseum.recipe.schema import EngineName, Name, Section, Text

MAX_BYTES = 1 << 16


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


def _tuples(value: Any) -> Any:
    """Lists to tuples, which the strict model wants."""
    if isinstance(value, dict):
        return {key: _tuples(v) for key, v in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
