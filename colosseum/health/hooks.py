"""Prolog and Epilog of Slurm: shell scripts around ``python -m colosseum.health``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from colosseum.health.__main__ import EXIT_FAILED

TEMPLATE = """#!/bin/bash
# Slurm {name}: light checks of this node, written by `colosseum preflight --install-prolog`.
# slurm.conf: {upper}={path} and, for a Prolog, SchedulerParameters=nohold_on_prolog_fail, so that the job of a node
# that fails is requeued to other nodes at once.
# Only a check that failed (exit code {code}) drains the node. A time-out, a missing file or a bug of ours does not.
out=$(timeout -k 1 {limit} {command} 2>&1 < /dev/null)
[ $? -eq {code} ] || exit 0
echo "colosseum preflight: $out" >&2
exit 1
"""
LIMIT_S = 9
"""Of the whole script, imports included."""


def install(folder: Path, words: Sequence[str]) -> list[Path]:
    """Writes prolog.sh and epilog.sh.

    Args:
        words: options of ``python -m colosseum.health``.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in ("prolog", "epilog"):
        path = folder.absolute() / f"{name}.sh"
        command = shlex.join([sys.executable, "-I", "-m", "colosseum.health", *words])
        fields = {"name": name, "upper": name.capitalize(), "path": path, "code": EXIT_FAILED, "limit": LIMIT_S}
        path.write_text(TEMPLATE.format(command=command, **fields))
        path.chmod(0o755)
        written.append(path)
    return written
