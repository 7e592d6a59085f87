"""The script that each scheduler's jobs run, and faults of a recipe and its cluster for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from colosseum.bundle import LOCAL_SCRIPT, SLURM_SCRIPT
from colosseum.errors import Fault
from colosseum.launch import environment
from colosseum.launch.local import processes, script
from colosseum.launch.slurm import job_script, site
from colosseum.planning.plan import Plan
from colosseum.recipe.schema import Recipe


class Render(Protocol):
    """The text of a bundle's script."""

    def __call__(self, recipe: Recipe, plan: Plan, argv: Sequence[str], *, stop_after_step: int = 0) -> str:
        """See ``launch/slurm/job_script.py``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripts:
    """What one scheduler makes of a recipe. Pure, but for looking at the files of the site."""

    name: str
    """Of the script in a bundle."""
    faults: Callable[[Recipe], list[Fault]]
    """What cannot be put into the script."""
    too_small: Callable[[Recipe], str | None]
    """A sentence where the cluster, or this machine, has not what the job takes."""
    paths: Callable[[Recipe], Sequence[site.SitePath]]
    """The cluster's own files that the script needs."""
    runs_faults: Callable[[Recipe, Path], list[Fault]]
    """Faults of a folder of runs."""
    render: Render
    render_array: Callable[[Sequence[tuple[Recipe, Plan]]], str] | None
    """The script of a job array; None = no queue."""


SCRIPTS: Mapping[str, Scripts] = {
    "slurm": Scripts(
        name=SLURM_SCRIPT,
        faults=job_script.faults,
        too_small=job_script.too_few_nodes,
        paths=site.paths,
        runs_faults=site.runs_faults,
        render=job_script.render,
        render_array=job_script.render_array,
    ),
    "local": Scripts(
        name=LOCAL_SCRIPT,
        faults=environment.faults,
        too_small=processes.cannot_run,
        paths=lambda recipe: (),
        runs_faults=lambda recipe, runs: [],
        render=script.render,
        render_array=None,
    ),
}
"""By the name in ``cluster.scheduler``."""


def scripts_of(recipe: Recipe) -> Scripts:
    """Those of the recipe's cluster."""
    return SCRIPTS[recipe.cluster.scheduler]


def stop_margin_s(recipe: Recipe, plan: Plan) -> int:
    """Seconds that a stopped run may take to save and leave, the same for every scheduler."""
    return job_script.margin_s(recipe, plan)
