"""Entry of a launch that is a tree of calls: builds what the file beside it names. Runs inside the engine's container.

    python calls_start.py FILE [PATH=JSON …]

A copy stands in every bundle of such an engine; nothing of Colosseum is imported. In the file
``{"call": "module:name", "with": {…}}`` is a call with named arguments and ``{"name": "module:name"}`` the object
itself; lists, numbers and texts are themselves. The outermost call is the engine's own training function. PATH is the
names of arguments from there, with dots between; it is given the value JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any


def named(text: str) -> Any:
    """The object that ``module:name`` names."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


def build(node: Any) -> Any:
    """A node of the file as the object that it describes."""
    if isinstance(node, list):
        return [build(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "name" in node and len(node) == 1:
        return named(node["name"])
    if "call" in node:
        return named(node["call"])(**{key: build(value) for key, value in node["with"].items()})
    return {key: build(value) for key, value in node.items()}


def tree(file: Path, words: list[str]) -> Any:
    """The outermost node of the file, with the arguments that the words change."""
    root = json.loads(file.read_text())
    for word in words:
        path, _, text = word.partition("=")
        *parents, last = path.split(".")
        node = root
        for name in parents:
            node = node["with"][name]
        node["with"][last] = json.loads(text)
    return root


if __name__ == "__main__":
    build(tree(Path(__file__).resolve().parent / sys.argv[1], sys.argv[2:]))
