"""Entry of a NeMo 2 launch: builds what ``nemo2.json`` beside it names, and calls it. Runs inside a NeMo container.

A copy stands in every bundle of engine ``nemo2``; nothing of Colosseum is imported. In the file
``{"call": "module:name", "with": {…}}`` is a call with named arguments and ``{"name": "module:name"}`` the object
itself; lists, numbers and texts are themselves. The outermost call is ``nemo.collections.llm``'s pretrain or finetune.
"""

from __future__ import annotations

import importlib
import json
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


if __name__ == "__main__":
    build(json.loads((Path(__file__).resolve().parent / "nemo2.json").read_text()))
