"""A team's own tasks: a YAML file of questions becomes a task of the harness. The file is data; nothing in it is run.

name: finance-terms
licence: CC0-1.0
kind: multiple_choice | exact_match | instructions
items: [{question, …, tags, language}, …]
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError

from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.base import Count, Name, Section, Text, tuples
from colosseum.recipe.scan import read_text, scan

Words = Annotated[str, StringConstraints(min_length=1, max_length=100_000)]
"""A text of one line or several."""
SUFFIXES = (".yaml", ".yml")


class Check(Section):
    """One instruction that an answer must follow, as IFEval names it, such as punctuation:no_comma."""

    id: Text
    values: Mapping[str, str | int | tuple[str, ...]] = Field({})
    """What the check takes, such as num_words: 20."""


class Question(Section):
    """One item. Which fields it needs is decided by the task's kind."""

    question: Words
    choices: tuple[Words, ...] = ()
    answer: Words | tuple[Words, ...] = ()
    checks: tuple[Check, ...] = ()
    tags: tuple[Text, ...] = ()
    language: Text | None = None


class OwnTask(Section):
    """A file."""

    name: Name
    licence: Text
    kind: Literal["multiple_choice", "exact_match", "instructions"]
    language: Text = "en"
    """Of items that name none."""
    max_tokens: Count = 256
    """Of an answer that is generated."""
    items: Annotated[tuple[Question, ...], Field(min_length=1)]


def is_own(word: str) -> bool:
    """Whether a word of --tasks names a file."""
    return word.endswith(SUFFIXES)


def read_own(path: Path) -> OwnTask:
    """A team's task.

    Raises:
        RefusedInput: with every fault of the file.
    """
    scanned = scan(read_text(path, str(path)), str(path))
    if scanned.faults:
        raise RefusedInput(scanned.faults)
    try:
        task = OwnTask.model_validate(tuples(scanned.data))
    except ValidationError as error:
        faults = [
            Fault(path=".".join(map(str, e["loc"])), value=e["input"], rule=e["msg"], where=str(path))
            for e in error.errors(include_url=False)
        ]
        raise RefusedInput(faults) from error
    if faults := _faults(task, str(path)):
        raise RefusedInput(faults)
    return task


def name_of(word: str) -> str:
    """What results call a task of --tasks: the name in the file, or the word itself."""
    return read_own(Path(word)).name if is_own(word) else word


def digest_of(path: Path) -> str:
    """sha256 of the file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _faults(task: OwnTask, where: str) -> list[Fault]:
    """Items that do not fit the task's kind."""
    found = []
    for number, item in enumerate(task.items):
        rule = ""
        if task.kind == "multiple_choice":
            if len(set(item.choices)) < max(2, len(item.choices)):
                rule = "needs at least two different choices"
            elif item.answer not in item.choices:
                rule = "answer must be one of its choices"
        elif task.kind == "exact_match" and (not item.answer or item.choices):
            rule = "needs an answer, and no choices"
        elif task.kind == "instructions" and (not item.checks or item.answer):
            rule = "needs checks, and no answer"
        if rule:
            found.append(Fault(path=f"items.{number}", value=item.question[:80], rule=rule, where=where))
    return found


def config_of(task: OwnTask) -> dict[str, Any]:
    """The harness's configuration of a task.

    Raises:
        RefusedInput: the harness does not know an instruction, or not with these values.
    """
    shared = {
        "task": task.name,
        "test_split": "test",
        "num_fewshot": 0,
        "metadata": {"version": 1.0},
    }
    if task.kind == "multiple_choice":
        return shared | _multiple_choice(task)
    return shared | (_exact_match(task) if task.kind == "exact_match" else _instructions(task))


def _rows(task: OwnTask, rows: list[dict[str, Any]]) -> Any:
    """A function that gives the harness the items as a data set."""
    both = [
        {**row, "tags": list(item.tags), "language": item.language or task.language}
        for row, item in zip(rows, task.items, strict=True)
    ]

    def dataset(**_: Any) -> Any:
        from datasets import Dataset, DatasetDict

        return DatasetDict({"test": Dataset.from_list(both)})

    return dataset


def _metrics(*names: str) -> list[dict[str, Any]]:
    return [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in names]


def _multiple_choice(task: OwnTask) -> dict[str, Any]:
    rows = [
        {"question": q.question, "choices": list(q.choices), "gold": q.choices.index(str(q.answer))} for q in task.items
    ]
    return {
        "custom_dataset": _rows(task, rows),
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}\nAnswer:",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": _metrics("acc", "acc_norm"),
    }


def _exact_match(task: OwnTask) -> dict[str, Any]:
    rows = [
        {"question": q.question, "answers": [q.answer] if isinstance(q.answer, str) else list(q.answer)}
        for q in task.items
    ]
    metric = {**_metrics("exact_match")[0], "ignore_case": True, "ignore_punctuation": True}
    strip = [{"function": "remove_whitespace"}, {"function": "take_first"}]
    return {
        "custom_dataset": _rows(task, rows),
        "output_type": "generate_until",
        "doc_to_text": "{{question}}\nAnswer:",
        "doc_to_target": "answers",
        "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": task.max_tokens},
        "filter_list": [{"name": "none", "filter": strip}],
        "metric_list": [metric],
    }


def _instructions(task: OwnTask) -> dict[str, Any]:
    from lm_eval.tasks.ifeval import instructions_registry, utils

    rows = []
    for number, item in enumerate(task.items):
        for check in item.checks:
            _refuse_bad(check, number, task, instructions_registry.INSTRUCTION_DICT)
        values = [{k: list(v) if isinstance(v, tuple) else v for k, v in c.values.items()} for c in item.checks]
        ids = [check.id for check in item.checks]
        rows.append({"key": number, "prompt": item.question, "instruction_id_list": ids, "kwargs": values})
    inside = {"aggregation": utils.agg_inst_level_acc, "higher_is_better": True}
    return {
        "custom_dataset": _rows(task, rows),
        "output_type": "generate_until",
        "doc_to_text": "prompt",
        "doc_to_target": 0,
        "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": task.max_tokens},
        "process_results": utils.process_results,
        "metric_list": [
            *_metrics("prompt_level_strict_acc"),
            {"metric": "inst_level_strict_acc", **inside},
            *_metrics("prompt_level_loose_acc"),
            {"metric": "inst_level_loose_acc", **inside},
        ],
    }


def _refuse_bad(check: Check, number: int, task: OwnTask, known: dict[str, Any]) -> None:
    path = f"{task.name}: items.{number}.checks"
    if check.id not in known:
        import difflib

        near = tuple(difflib.get_close_matches(check.id, known, n=3))
        raise RefusedInput([Fault(path=path, value=check.id, rule="IFEval has no such instruction", nearest=near)])
    try:
        known[check.id](check.id).build_description(**check.values)
    except (TypeError, ValueError, KeyError) as error:
        rule = f"the instruction does not take these values: {error}"
        raise RefusedInput([Fault(path=path, value=check.id, rule=rule)]) from error
