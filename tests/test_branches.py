"""Facts of an engine, a scheduler or a task live in its own package: nobody else branches on its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import get_args

import grimp
import pytest

from colosseum.engines.registry import ENGINES
from colosseum.launch.schedulers.registry import SCHEDULERS
from colosseum.launch.schedulers.scripts import SCRIPTS
from colosseum.recipe.cluster import Cluster

PACKAGE = Path(__file__).resolve().parents[1] / "colosseum"
NAMES = {"engine": set(ENGINES), "scheduler": set(SCHEDULERS)}
OWN_ROOM = {"engine": ("engines/",), "scheduler": ("launch/slurm/", "launch/local/", "launch/schedulers/")}
EXCEPTIONS: dict[str, dict[str, str]] = {
    "engine": {},
    "scheduler": {"launch/runs/jobs.py": "a process id is given out again, a job id of a queue is not"},
}
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


def test_registries_have_the_schedulers_of_the_schema() -> None:
    names = set(get_args(Cluster.model_fields["scheduler"].annotation))
    assert set(SCHEDULERS) == set(SCRIPTS) == names


@pytest.mark.parametrize("of_types", [False, True], ids=["at run time", "of types too"])
def test_no_module_imports_itself_through_others(of_types: bool) -> None:
    """Imports inside functions count: one that is there only because of a cycle hides it."""
    graph = grimp.build_graph("colosseum", exclude_type_checking_imports=not of_types, cache_dir=None)
    try:
        TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))
