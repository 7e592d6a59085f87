"""What the engine's own code makes of a bundle's configuration."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from colosseum.bundle import ENV, read_bundle
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.reading import read_bytes
from colosseum.terminal import one_line

PROGRAM = "engine/check_config.py"
ENDS_WITHIN_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A value of the launch that the engine replaces."""

    field: str
    said: str
    now: str


def changes(folder: Path, python: Path) -> list[Change]:
    """Values of a bundle that its engine replaces before it trains.

    Args:
        python: interpreter of an environment that holds the engine.

    Raises:
        RefusedInput: it is no bundle, or its engine cannot be asked.
        EnvironmentFault: the engine is not in that environment, or refuses the configuration.
    """
    bundle = read_bundle(folder)
    if PROGRAM not in bundle.manifest["files"]:
        raise RefusedInput(
            f"{folder}: engine {bundle.recipe.engine} cannot be asked; megatron-lm, bridge and nemo2 can"
        )
    variables = json.loads(read_bytes(folder / ENV))["variables"]
    env = {**os.environ, **{v["name"]: v["value"] for v in variables if isinstance(v["value"], str)}}
    words = [str(python), "-I", str((folder / PROGRAM).resolve())]
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, errors="replace", timeout=ENDS_WITHIN_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault(f"{python}: {error}") from error
    if done.returncode:
        last = one_line(done.stderr.strip().rpartition("\n")[2], 300)
        raise EnvironmentFault(f"{folder}: {bundle.recipe.engine} in the environment of {python}: {last}")
    found = json.loads(done.stdout)["changed"]
    return [Change(field=one["field"], said=one["said"], now=one["is"]) for one in found]
