"""Facts of an engine, a scheduler or a task live in its own package: nobody else branches on its name."""

from __future__ import annotations

import ast
import functools
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
from colosseum.recipe.tasks import TASKS

PACKAGE = Path(__file__).resolve().parents[1] / "colosseum"
NAMES = {
    "engine": {*ENGINES, *(type(engine).__name__ for engine in ENGINES.values())},
    "scheduler": {*SCHEDULERS, "SlurmScheduler", "LocalScheduler"},
    "task": {*TASKS, *(task.__name__ for task in TASKS.values())},
}
"""Names in recipes and names of types."""
OWN_ROOM = {
    "engine": ("engines/",),
    "scheduler": ("launch/slurm/", "launch/local/", "launch/schedulers/"),
    "task": ("recipe/tasks.py", "runtime/tasks/", *(f"engines/{name.replace('-', '_')}/" for name in ENGINES)),
}
"""An engine's package says how it trains each task."""
EXCEPTIONS: dict[str, dict[str, str]] = {
    "engine": {},
    "scheduler": {
        "launch/runs/jobs.py": "a process id is given out again, a job id of a queue is not",
        "launch/runs/control.py": "a process that is gone has ended, a job that Slurm forgot may not have",
        "owner.py": "runs in a bundle without the package: whether a job or a process lives is asked in two ways",
        "records.py": "parses the owner's record, whose keys differ",
    },
    "task": {},
}
"""Kind -> file -> why it may branch all the same."""


def _constants(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _types(node: ast.AST) -> Iterator[str]:
    """Names of types that an isinstance or a class pattern asks for."""
    asked: list[ast.expr] = []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
        asked = node.args[1:]
    elif isinstance(node, ast.MatchClass):
        asked = [node.cls]
    for part in (part for root in asked for part in ast.walk(root)):
        if isinstance(part, ast.Name | ast.Attribute):
            yield part.id if isinstance(part, ast.Name) else part.attr


@functools.cache
def _branches() -> list[tuple[str, int, set[str]]]:
    """File and line of every comparison, and the texts and types that it compares with."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            words = set(_types(node))
            if isinstance(node, ast.Compare):
                words = {w for side in (node.left, *node.comparators) for w in _constants(side)}
            elif isinstance(node, ast.MatchValue):
                words = set(_constants(node.value))
            if words:
                found.append((path.relative_to(PACKAGE).as_posix(), getattr(node, "lineno", 0), words))
    return found


@pytest.mark.parametrize("kind", NAMES)
def test_no_branch_on_a_name_outside_its_package(kind: str) -> None:
    found = [
        (file, line) for file, line, words in _branches() if words & NAMES[kind] and not file.startswith(OWN_ROOM[kind])
    ]
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
