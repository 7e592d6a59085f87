"""Recipe and Plan -> the files of a LaunchBundle. Nothing is written, and no process is started except git."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from colosseum.bundle import (
    ENV,
    ENV_SCHEMA,
    MANIFEST_SCHEMA,
    PLAN,
    RECIPE,
    to_json,
    to_yaml,
)
from colosseum.engines.registry import engine_of
from colosseum.errors import Fault, RefusedInput
from colosseum.launch import environment
from colosseum.launch.schedulers.scripts import scripts_of
from colosseum.planning.plan import Plan
from colosseum.recipe import derived
from colosseum.recipe.derived import image_of
from colosseum.recipe.hash import recipe_hash
from colosseum.recipe.schema import Recipe

_PACKAGES = (
    "colosseum",
    "hydra-core",
    "megatron-core",
    "numpy",
    "omegaconf",
    "pydantic",
    "torch",
    "transformer-engine",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The checkpoint of another run that a run starts from."""

    run: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A bundle before it is written."""

    recipe: Recipe
    plan: Plan
    script_name: str
    files: Mapping[str, bytes]
    manifest: Mapping[str, Any]

    @property
    def script(self) -> str:
        """Text of the job or launch script."""
        return self.files[self.script_name].decode()


def faults(recipe: Recipe) -> list[Fault]:
    """Faults: what the engine or the cluster does not support in a resolved recipe."""
    return [*engine_of(recipe.engine).faults(recipe), *scripts_of(recipe).faults(recipe)]


def compile_bundle(recipe: Recipe, plan: Plan, *, lineage: Lineage | None = None, stop_after_step: int = 0) -> Compiled:
    """Renders a resolved recipe (no ``auto`` left) for its engine and its cluster's scheduler.

    Args:
        stop_after_step: in a queue, the first attempt saves and exits after this step (0 = off).

    Raises:
        RefusedInput: the engine or the cluster does not support the recipe; all faults at once.
    """
    if found := faults(recipe):
        raise RefusedInput(found)
    launch = engine_of(recipe.engine).render(recipe, plan)
    scripts = scripts_of(recipe)
    script = scripts.render(recipe, plan, launch.argv, stop_after_step=stop_after_step)
    env = {"schema": ENV_SCHEMA, "variables": [asdict(s) for s in environment.settings(recipe, plan)]}
    files = {
        RECIPE: to_yaml(recipe.as_data()),
        PLAN: to_json(plan.as_json()),
        ENV: to_json(env),
        scripts.name: script.encode(),
        **library(),
        **{f"engine/{file}": data for file, data in launch.files.items()},
    }
    return Compiled(
        recipe=recipe, plan=plan, script_name=scripts.name, files=files, manifest=_manifest(recipe, lineage)
    )


def library() -> dict[str, bytes]:
    """What of this package a job script and a foreign engine's ranks import: copies, of the standard library only."""
    package = resources.files("colosseum")
    names = ("records.py", "owner.py", "jobscript.py")
    copies = {f"lib/colosseum/{name}": package.joinpath(name).read_bytes() for name in names}
    return {**copies, "lib/colosseum/__init__.py": b""}


def _manifest(recipe: Recipe, lineage: Lineage | None) -> dict[str, Any]:
    image = image_of(recipe.cluster, recipe.engine)
    return {
        "schema": MANIFEST_SCHEMA,
        "recipe_hash": recipe_hash(recipe),
        "total_steps": derived.total_steps(recipe),
        "versions": _versions(),
        "git": _git(),
        "container": None if image is None else {"image": image, "digest": _digest(image)},
        "lineage": None if lineage is None else asdict(lineage),
    }


@cache
def _versions() -> dict[str, str | None]:
    """Of the packages installed where the bundle is written; in a container the ranks have the image's."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _digest(image: str) -> str | None:
    """The digest that an image name pins, if it does."""
    match = re.search(r"@(sha256:[0-9a-f]{64})$", image)
    return match[1] if match else None


@cache
def _git() -> dict[str, Any] | None:
    """Commit of the checkout that this package runs from; None for an installed package or without git."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    commit = _git_says(root, "rev-parse", "HEAD")
    changes = _git_says(root, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changes is None else {"commit": commit, "dirty": bool(changes)}


def _git_says(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
