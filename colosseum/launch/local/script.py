"""The launch script of a local run: variables, each with its reason, and one command that starts the ranks. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import resources

from colosseum.launch.environment import UNSET, settings
from colosseum.planning.plan import Plan
from colosseum.recipe.schema import Recipe

_HEAD = """#!/bin/bash
# Starts every rank of this bundle on this machine. From inside the run folder: bash bundle/launch.sh
# It is what `colosseum bundle run` runs; `colosseum.launch.local.ranks` is to this machine what srun is to a cluster.
set -euo pipefail
"""
_COMMAND = """\
exec env{scratch} "${{settings[@]}}" bash -c "$(declare -f prepare_rank raise_limit)
prepare_rank"'
exec "$@"' ranks python -P -m colosseum.launch.local.ranks {gpus} {words}
"""


def render(recipe: Recipe, plan: Plan, argv: Sequence[str], *, stop_after_step: int = 0) -> str:
    """The text of ``bundle/launch.sh``.

    Args:
        argv: what every rank runs, from inside the run folder.
        stop_after_step: 0; nothing here starts a run again that stopped.
    """
    assert stop_after_step == 0, "only a queue starts a job again"
    lines = [f"  {shlex.quote(f'{s.name}={s.value}')}  # {s.reason}" for s in settings(recipe, plan)]
    lines += [")", *(f': "${{{name}:?{UNSET}}}"' for name in recipe.cluster.env_from)]
    place = recipe.cluster.paths.scratch
    command = _COMMAND.format(
        scratch="" if place is None else f" {shlex.quote(f'COLOSSEUM_SCRATCH={place}')}",
        gpus=recipe.resources.gpus,
        words=" ".join(map(shlex.quote, argv)),
    )
    prepare = resources.files("colosseum.launch").joinpath("rank.bash").read_text()
    umask = f"umask {recipe.cluster.paths.umask:04o}"
    return _HEAD + "\n".join([umask, "settings=(", *lines, "", prepare, command])
