"""Files of the site that a job script needs; some can be checked only on the compute nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colosseum.errors import Fault
from colosseum.recipe.derived import image_field, image_of
from colosseum.recipe.schema import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePath:
    """A path in the cluster file and the file that must be there."""

    field: str
    value: str
    file: Path
    rule: str
    """What is wrong where the file is absent."""


def paths(recipe: Recipe) -> list[SitePath]:
    """Of the virtual environment and the container's image."""
    cluster, found = recipe.cluster, []
    if cluster.venv is not None:
        rule = "has no bin/python: the job would use the next python in PATH"
        python = Path(cluster.venv) / "bin" / "python"
        found.append(SitePath(field="cluster.venv", value=cluster.venv, file=python, rule=rule))
    image = image_of(cluster, recipe.engine)
    if image is not None and image.startswith("/"):
        field = image_field(cluster, recipe.engine)
        found.append(SitePath(field=field, value=image, file=Path(image), rule="does not exist"))
    return found


def runs_faults(recipe: Recipe, runs: Path) -> list[Fault]:
    """A folder of runs that cannot be mounted into the container."""
    if recipe.cluster.container is None or "," not in str(runs.absolute()):
        return []
    rule = "must not contain a comma: pyxis reads it as the start of the next mount; choose another folder with --runs"
    return [Fault(path="cluster.paths.runs", value=str(runs), rule=rule)]
