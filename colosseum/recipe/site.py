"""Site facts (the ``cluster`` section) come from a cluster file or the command line, never from a recipe.

They hold what a job executes: environment variables (PYTHONPATH, LD_PRELOAD, BASH_ENV, ...), the virtual environment,
modules and the container image. A recipe is data that people pass on; it must not be able to choose any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from colosseum.errors import Fault

RULE = (
    "site facts come from a cluster file (~/.config/colosseum/cluster/NAME.yaml) or the command line "
    "(--cluster NAME, cluster.key=value), never from a recipe"
)
BESIDE_RULE = (
    "a cluster file beside a recipe is not read: if it is yours, move it to ~/.config/colosseum/cluster/ "
    "(site facts never come from a recipe)"
)


def is_cluster_file(config_path: str) -> bool:
    """Whether ``group/name`` is a cluster file; ``_Repository.find`` looks for those in trusted folders only."""
    return config_path.startswith("cluster/")


def take_out(layer: dict[str, Any], prefix: tuple[str, ...], lines: Mapping[tuple[str, ...], int], shown: str) -> Any:
    """Removes the ``cluster`` section from what one file of a recipe says; returns one Fault for each of its keys.

    Args:
        layer: the file's values below its package (``prefix``).
        lines: 0-based line of each path of the file, without the prefix.
    """
    if "cluster" not in layer:
        return []
    section = layer.pop("cluster")
    paths = [("cluster", key) for key in section] if isinstance(section, dict) else [("cluster",)]
    # No value is shown: it may be a secret.
    return [
        Fault(path=".".join(path), value=None, rule=RULE, where=f"{shown}:{lines.get(path[len(prefix) :], 0) + 1}")
        for path in paths
    ]


def beside(folder: Path, name: str, trusted: tuple[Path, ...]) -> Iterator[Fault]:
    """A Fault if the recipe's own folder holds a cluster file of the chosen name."""
    file = folder / "cluster" / f"{name}.yaml"
    try:
        ours = any(folder.resolve() == root.resolve() for root in trusted)
        if not ours and file.is_file():
            yield Fault(path="cluster", value=name, rule=BESIDE_RULE, where=f"{file}:1")
    except OSError:
        return
