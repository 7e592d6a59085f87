"""Resolves a launch's configuration with the engine's own code, and reports what that changes. Runs where it is.

    python check_config.py

A copy stands in the bundles whose engine can be asked; nothing of Colosseum is imported. ``checks`` of ``command.json``
says how:

    arguments    module of a parser: its parse_args() reads the arguments, its validate_args() finishes them
    tree, node   file of calls beside this one, and the argument of the outermost call that is the configuration;
    finish       the engine's function that finishes it; null = every dataclass in the tree finishes itself
    ranks        processes of the launch

Printed is one JSON document: {"changed": [{"field", "said", "is"}]}. A field that is given as null may be filled in.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # a bundle never changes
Change = dict[str, str]


def main() -> None:
    command = json.loads((HERE / "command.json").read_text())
    how, home = command["checks"], command["home"]
    for name, value in {"WORLD_SIZE": str(how["ranks"]), "RANK": "0", "LOCAL_RANK": "0", **command["env"]}.items():
        os.environ.setdefault(name, value)
    if home is not None:
        sys.path.insert(0, os.environ.get(home["variable"], home["default"]))
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # engines print as they validate
        as_on_a_gpu()
        found = of_arguments(how, command["arguments"]) if how.get("arguments") else of_tree(how)
    json.dump({"changed": found}, out)


def as_on_a_gpu() -> None:
    """Where there is no GPU: the Hopper that the checks of an engine ask for."""
    import torch

    if not torch.cuda.is_available():
        torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0)
        torch.cuda.get_device_capability = lambda *_: (9, 0)


def of_arguments(how: dict[str, Any], words: list[str]) -> list[Change]:
    """Options on the command line whose values the engine changes."""
    module = importlib.import_module(how["arguments"])
    sys.argv = ["check", *words]
    given = module.parse_args()
    options = {word[2:].replace("-", "_") for word in words if word.startswith("--")}
    said = {name: copy.copy(value) for name, value in vars(given).items() if name in options}
    finished = vars(module.validate_args(given, {}) or given)
    return [change(name, value, finished[name]) for name, value in said.items() if finished[name] != value]


def of_tree(how: dict[str, Any]) -> list[Change]:
    """Arguments of calls whose values the engine changes."""
    sys.path.insert(0, str(HERE))
    calls_start = importlib.import_module("calls_start")
    root = json.loads((HERE / how["tree"]).read_text())
    if how["finish"] is None:
        found = []
        for path, node in calls_in(root, ""):
            if dataclasses.is_dataclass(calls_start.named(node["call"])):
                found += changed_in(path, node, calls_start.build(node), calls_start.build)
        return found
    node = root["with"][how["node"]]
    whole = calls_start.build(node)
    calls_start.named(how["finish"])(whole)
    return changed_in("", node, whole, calls_start.build)


def calls_in(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every call, with the names of the arguments that lead to it."""
    if isinstance(node, list):
        for item in node:
            yield from calls_in(item, path)
    elif isinstance(node, dict):
        if "call" in node:
            yield path, node
        for name, value in node.get("with", node).items():
            yield from calls_in(value, f"{path}.{name}".strip("."))


def changed_in(path: str, node: Any, has: Any, build: Any) -> list[Change]:
    """Arguments of a call, and of the calls among them, that the object has with another value."""
    found = []
    for name, value in node["with"].items():
        field, now = f"{path}.{name}".strip("."), getattr(has, name, None)
        if isinstance(value, dict) and "call" in value:
            found += changed_in(field, value, now, build) if now is not None else []
        elif value is not None and hasattr(has, name):
            said = build(value)
            if plain(now) != plain(said):
                found.append(change(field, said, now))
    return found


def plain(value: Any) -> Any:
    """A value without the difference of lists and tuples."""
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def change(field: str, said: Any, now: Any) -> Change:
    return {"field": field, "said": str(said)[:200], "is": str(now)[:200]}


if __name__ == "__main__":
    main()
