"""Site facts (the ``cluster`` section) come from a cluster file or the command line, never from a recipe.

They decide what a job executes: environment variables (PYTHONPATH, LD_PRELOAD, BASH_ENV, ...), virtual environment,
modules and container image. A recipe is data that people share; it must not be able to choose any of them.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from colosseum.errors import Fault
from colosseum.recipe.schema import Recipe

RULE = (
    "site facts come from a cluster file (~/.config/colosseum/cluster/NAME.yaml) or the command line "
    "(--cluster NAME, cluster.key=value), never from a recipe"
)
BESIDE_RULE = (
    "a cluster file in a recipe's folder is not read: if you trust it, move it to ~/.config/colosseum/cluster/ "
    "(site facts never come from a recipe)"
)

_REFUSAL = (
    "looks like a secret; bundles must not contain secrets: set it in your login environment, which a job inherits, "
    "and list its name in cluster.env_from"
)
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|(PRIVATE|ACCESS)_?KEY|(^|_)PAT(_|$)|DATABASE_URL"
)
# Every repetition is bounded, so that a crafted value cannot make matching slow.
_SECRET_VALUE = re.compile(
    r"://[^\s/@:]{0,128}:[^\s/@]{1,256}@"  # a password in a URL
    # user:password@host; neither run:RUN@STEP nor IMAGE:TAG@sha256:DIGEST is one
    r"|^(?!run:|stage:)[^\s/:@]{1,128}:[^\s/@]{1,256}@(?!sha256:)[\w.-]"
    r"|(?i:password|passwd|pwd|secret|token|api_?key|access_?key|signature)=[^\s&;,]"
    r"|\b(?:Bearer|Basic) [\w.~+/=-]{8}"
    r"|-----BEGIN (?:[A-Z]{1,16} ){0,3}PRIVATE KEY"
    r"|(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{8}|gh[opsur]_[A-Za-z0-9]{8}|github_pat_\w{8}|glpat-[\w-]{8}|sk-[\w-]{8}"
    r"|xox[abeprs]-[\w-]{8}|nvapi-[\w-]{8}|AIza[\w-]{30}|(?:AKIA|ASIA)[A-Z0-9]{12}|eyJ[\w-]{8,512}\.eyJ[\w-])"
    # an AWS secret key: 40 characters of base64 with small and large letters and digits
    r"|(?<![\w/+=-])(?=[A-Za-z0-9/+]{0,39}[a-z])(?=[A-Za-z0-9/+]{0,39}[A-Z])(?=[A-Za-z0-9/+]{0,39}[0-9])"
    r"[A-Za-z0-9+][A-Za-z0-9/+]{39}(?![\w/+=-])"
)


def secret_faults(recipe: Recipe) -> list[Fault]:
    """Site facts that look like a secret, by the name of a variable or by any value; the values are not shown."""
    found = {
        f"cluster.env.{name}": None
        for name, value in recipe.cluster.env.items()
        if _SECRET_NAME.search(name.upper()) or _SECRET_VALUE.search(value)
    }
    container, slurm = recipe.cluster.container, recipe.cluster.slurm
    texts = {"slurm.extra": slurm.extra, "modules": recipe.cluster.modules, "env_from": recipe.cluster.env_from}
    if container is not None:
        images = {f"container.images.{engine}": (image,) for engine, image in container.images.items()}
        texts |= {"container.image": (container.image or "",), "container.mounts": container.mounts, **images}
    for path, values in texts.items():
        if any(map(_SECRET_VALUE.search, values)):
            found[f"cluster.{path}"] = None
    return [Fault(path=path, value="…", rule=_REFUSAL) for path in found]


def duplicate_variable_faults(recipe: Recipe) -> list[Fault]:
    """Variables that a cluster file sets and also takes from the environment."""
    twice = [name for name in recipe.cluster.env_from if name in recipe.cluster.env]
    return [
        Fault(path="cluster.env_from", value=name, rule="is set in cluster.env too, which overrides it")
        for name in twice
    ]


def without_secret(fault: Fault) -> Fault:
    """The fault without its value where that looks like a secret; any field, because an unknown key has no type."""
    last = fault.path.rpartition(".")[2].upper()
    named = fault.path.startswith("cluster.") and _SECRET_NAME.search(last)
    if fault.value is None or not (named or any(map(_is_secret, _texts(fault.value)))):
        return fault
    return dataclasses.replace(fault, value="…")


def _is_secret(text: str) -> bool:
    return _SECRET_VALUE.search(text) is not None


def _texts(value: Any) -> Iterator[str]:
    """All text in a value, including keys."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item)
            if _SECRET_NAME.search(str(name).upper()):
                yield f"token={item}"
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def anchor(cluster: Any, folder: Path) -> None:
    """Makes the paths of files in a ``cluster`` section (plain data, not checked yet) absolute.

    Of the virtual environment, image files and the sources of mounts: ``~`` is the home, others are read from
    ``folder``. What begins with ``${`` leads to another value and stays.
    """
    if not isinstance(cluster, dict):
        return
    _anchor(cluster, "venv", folder, lambda text: True)
    container = cluster.get("container")
    if not isinstance(container, dict):
        return
    _anchor(container, "image", folder, _is_image_file)
    images = container.get("images")
    for engine in images if isinstance(images, dict) else ():
        _anchor(images, engine, folder, _is_image_file)
    mounts = container.get("mounts")
    for i in range(len(mounts)) if isinstance(mounts, list) else ():
        _anchor(mounts, i, folder, lambda text: text.startswith(("~", ".")))


def _anchor(section: Any, key: Any, folder: Path, is_file: Callable[[str], bool]) -> None:
    text = section.get(key) if isinstance(section, dict) else section[key]
    if not isinstance(text, str) or not text or text.startswith("${") or not is_file(text):
        return
    path = os.path.expanduser(text)  # noqa: PTH111
    if not path.startswith("~"):  # a home that does not exist stays
        section[key] = os.path.normpath(folder / path)


def _is_image_file(image: str) -> bool:
    """Else it is a registry's; pyxis itself takes only ``/…`` and ``./…`` as files."""
    return image.startswith(("/", ".", "~")) or image.endswith(".sqsh")


def is_cluster_file(config_path: str) -> bool:
    """Whether ``group/name`` is a cluster file; ``_Repository.find`` looks for those in trusted folders only."""
    return config_path.startswith("cluster/")


def remove_cluster_section(
    layer: dict[str, Any], prefix: tuple[str, ...], lines: Mapping[tuple[str, ...], int], shown: str
) -> Any:
    """Remove the ``cluster`` section from the values of one file of a recipe; return one Fault per key in it.

    Args:
        layer: the file's values below its package (``prefix``).
        lines: 0-based line of each path of the file, without the prefix.
    """
    if "cluster" not in layer:
        return []
    section = layer.pop("cluster")
    paths = [("cluster", key) for key in section] if isinstance(section, dict) else [("cluster",)]
    # The value is not shown: it may be a secret.
    return [
        Fault(path=".".join(path), value=None, rule=RULE, where=f"{shown}:{lines.get(path[len(prefix) :], 0) + 1}")
        for path in paths
    ]


def cluster_file_beside(folder: Path, name: str, trusted: tuple[Path, ...]) -> Iterator[Fault]:
    """A Fault if the recipe's own folder contains a cluster file of the chosen name."""
    file = folder / "cluster" / f"{name}.yaml"
    try:
        ours = any(folder.resolve() == root.resolve() for root in trusted)
        if not ours and file.is_file():
            yield Fault(path="cluster", value=name, rule=BESIDE_RULE, where=f"{file}:1")
    except OSError:
        return
