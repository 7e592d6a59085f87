"""Facts of an engine, a scheduler or a task live in its own package: nobody else branches on its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from colosseum.engines.registry import ENGINES

PACKAGE = Path(__file__).resolve().parents[1] / "colosseum"
NAMES = {"engine": set(ENGINES)}
OWN_ROOM = {"engine": ("engines/",)}
EXCEPTIONS: dict[str, dict[str, str]] = {"engine": {}}
"""Kind -> file -> why it may branch all the same."""


def _constants(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _branches(kind: str) -> Iterator[tuple[str, int]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if file.startswith(OWN_ROOM[kind]):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            words: set[str] = set()
            if isinstance(node, ast.Compare):
                words = {w for side in (node.left, *node.comparators) for w in _constants(side)}
            elif isinstance(node, ast.MatchValue):
                words = set(_constants(node.value))
            if words & NAMES[kind]:
                yield file, node.lineno


@pytest.mark.parametrize("kind", NAMES)
def test_no_branch_on_a_name_outside_its_package(kind: str) -> None:
    found = list(_branches(kind))
    assert [place for place in found if place[0] not in EXCEPTIONS[kind]] == []
    assert set(EXCEPTIONS[kind]) == {file for file, _ in found}, "an exception that nothing needs"
