"""Files of own tasks: what they may not be, and the page's example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from colosseum.errors import RefusedInput
from colosseum.evaluation.own_tasks import read_own
from tests.evaluation import made


def write(folder: Path, kind: str, **item: object) -> Path:
    path = folder / "t.yaml"
    task = {"name": "t", "licence": "CC0-1.0", "kind": kind, "items": [{"question": "q?", **item}]}
    path.write_text(yaml.safe_dump(task))
    return path


@pytest.mark.parametrize(
    ("kind", "item", "sentence"),
    [
        ("multiple_choice", {"choices": ["a"], "answer": "a"}, "at least two different choices"),
        ("multiple_choice", {"choices": ["a", "a"], "answer": "a"}, "at least two different choices"),
        ("multiple_choice", {"choices": ["a", "b"], "answer": "c"}, "answer must be one of its choices"),
        ("multiple_choice", {"choices": ["a", "b"], "answer": 1}, "items.0.answer"),
        ("exact_match", {}, "needs an answer, and no choices"),
        ("exact_match", {"answer": "a", "choices": ["a", "b"]}, "needs an answer, and no choices"),
        ("instructions", {"answer": "a"}, "needs checks, and no answer"),
        ("instructions", {"checks": [{"id": "x", "code": "y"}]}, "items.0.checks.0.code"),
        ("essay", {"answer": "a"}, "kind"),
        ("exact_match", {"answer": "a", "language": False}, "items.0.language"),
    ],
)
def test_faulty_files(tmp_path: Path, kind: str, item: dict[str, object], sentence: str) -> None:
    with pytest.raises(RefusedInput, match=re.escape(sentence)):
        read_own(write(tmp_path, kind, **item))


def test_a_licence_and_items_are_needed_and_nothing_is_run(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("name: t\nkind: exact_match\nitems: []\n")
    with pytest.raises(RefusedInput) as refused:
        read_own(path)
    assert {fault.path for fault in refused.value.faults} == {"licence", "items"}
    path.write_text("name: !!python/object/apply:os.system [true]\n")
    with pytest.raises(RefusedInput, match="tag"):
        read_own(path)
    with pytest.raises(RefusedInput, match="no such file"):
        read_own(tmp_path / "absent.yaml")


def test_the_guides_example_is_a_task(tmp_path: Path) -> None:
    task = read_own(made.write_guides_task(tmp_path))
    assert (task.name, task.licence, len(task.items)) == ("finance", "CC0-1.0", 3)
    assert {item.language or task.language for item in task.items} == {"en", "it"}
