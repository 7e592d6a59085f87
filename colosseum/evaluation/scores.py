"""From the harness's results to scores with intervals: by task, group, subject, tag and language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colosseum.evaluation.intervals import Interval, interval

AGREES = 1e-9
"""Two sums of the same numbers in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question of a task."""

    task: str
    key: str
    """Hash of the question; the same in every evaluation."""
    values: Mapping[str, tuple[float, float]]
    """By metric: value and weight."""
    tags: tuple[str, ...]
    language: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Of a task or group."""

    task: str
    metric: str
    mean: float
    """The harness's own number."""
    interval: Interval | None
    """None where the metric is no mean over items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """All of an evaluation."""

    scores: tuple[Score, ...]
    """The first of a task or group is its main one."""
    items: tuple[Item, ...]
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tasks of each group."""

    def main(self, task: str) -> Score:
        return next(score for score in self.scores if score.task == task)


def scores_of(results: Mapping[str, Any]) -> Scores:
    """Scores of the harness's results, which must hold all items."""
    items = [item for task, samples in results["samples"].items() for item in _items(task, samples)]
    members = {group: tuple(_leaves(group, results)) for group in results.get("groups", {})}
    found: list[Score] = []
    for task, row in results["results"].items():
        mine = [item for item in items if item.task in members.get(task, (task,))]
        metrics = [m for m in row if "," in m and "_stderr" not in m and isinstance(row[m], int | float)]
        for name in _ordered(metrics, task, results):
            found.append(_score(task, name, float(row[name]), mine))
    return Scores(scores=tuple(found), items=tuple(items), members=members)


def parts_of(items: Sequence[Item], task: str, metric: str) -> dict[str, dict[str, Interval]]:
    """Intervals of a task's score by tag and by language, where its items name them."""
    mine = [item for item in items if item.task == task and metric in item.values]
    found: dict[str, dict[str, Interval]] = {}
    for kind, names in (("tag", sorted({t for i in mine for t in i.tags})), ("language", _languages(mine))):
        rows = {}
        for name in names:
            part = [i for i in mine if (name in i.tags if kind == "tag" else name == i.language)]
            rows[name] = _interval(part, metric)
        if rows:
            found[kind] = rows
    return found


def _languages(items: Iterable[Item]) -> list[str]:
    return sorted({item.language for item in items} - {""})


def _leaves(group: str, results: Mapping[str, Any]) -> list[str]:
    """The tasks of a group, through groups inside it."""
    found: list[str] = []
    for name in results["group_subtasks"].get(group, []):
        inner = results["group_subtasks"].get(name)
        found += _leaves(name, results) if inner else [name]
    return found


def _ordered(metrics: Sequence[str], task: str, results: Mapping[str, Any]) -> list[str]:
    """Metrics in the order of the task's configuration, which has the main one first."""
    listed = [m["metric"] for m in results["configs"].get(task, {}).get("metric_list") or ()]
    rank = {name: place for place, name in enumerate(listed)}
    return sorted(metrics, key=lambda m: rank.get(m.partition(",")[0], len(rank)))


def metric_name(key: str) -> str:
    """``acc`` of the harness's ``acc,none``: the filter is named where there is one."""
    return key.removesuffix(",none")


def _score(task: str, key: str, mean: float, items: Sequence[Item]) -> Score:
    metric = metric_name(key)
    mine = [item for item in items if metric in item.values]
    found = None
    if mine:
        by_task: dict[str, int] = {}
        for item in mine:
            by_task[item.task] = by_task.get(item.task, 0) + 1
        # A group's score weighs its items alike, or its tasks.
        for weights in (None, by_task):
            tried = _interval(mine, metric, weights)
            if abs(tried.mean - mean) < AGREES:
                found = tried
                break
    return Score(task=task, metric=metric, mean=mean, interval=found)


def _interval(items: Sequence[Item], metric: str, by_task: Mapping[str, int] | None = None) -> Interval:
    values = [item.values[metric][0] for item in items]
    weights = [item.values[metric][1] / (by_task[item.task] if by_task else 1) for item in items]
    return interval(values, weights)


def _items(task: str, samples: Iterable[Mapping[str, Any]]) -> list[Item]:
    """A task's items; the harness lists each once for every filter."""
    found: dict[str, Item] = {}
    for sample in samples:
        doc = sample["doc"]
        key = f"{sample['doc_hash'][:24]}-{sample['doc_id']}"
        suffix = "" if sample["filter"] == "none" else f",{sample['filter']}"
        values = {f"{m}{suffix}": pair for m in sample["metrics"] if (pair := _value(sample[m])) is not None}
        before = found[key].values if key in found else {}
        found[key] = Item(
            task=task,
            key=key,
            values={**before, **values},
            tags=tuple(map(str, doc.get("tags") or ())) if isinstance(doc, Mapping) else (),
            language=str(doc.get("language") or "") if isinstance(doc, Mapping) else "",
        )
    return list(found.values())


def _value(found: Any) -> tuple[float, float] | None:
    """Value and weight of an item's metric; several verdicts on one item (IFEval's instructions) weigh as many."""
    if isinstance(found, bool | int | float):
        return float(found), 1.0
    if isinstance(found, list) and found and all(isinstance(x, bool | int | float) for x in found):
        return sum(found) / len(found), float(len(found))
    return None
