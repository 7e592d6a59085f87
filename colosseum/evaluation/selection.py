"""Which of several checkpoints is the best by their scores, and which differences are none. Pure.

Checkpoints answered the same items, so differences are taken item by item: their intervals are narrower than those of
the two scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from colosseum.evaluation.intervals import Interval, difference
from colosseum.evaluation.scores import Item


@dataclass(frozen=True, slots=True)
class By:
    """One word of ``--by``: a task or group, and its metric."""

    task: str
    metric: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A checkpoint with its scores."""

    name: str
    run: str
    step: int
    means: tuple[float, ...]
    """One for each ``By``."""
    items: tuple[Item, ...]
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Tasks of each group."""

    def of(self, by: By) -> dict[str, Item]:
        """Items of a task or group that have its metric."""
        tasks = self.members.get(by.task, (by.task,))
        return {f"{i.task} {i.key}": i for i in self.items if i.task in tasks and by.metric in i.values}


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A part of a task in which the chosen checkpoint is worse than the parent."""

    part: str
    metric: str
    change: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The result of a selection."""

    chosen: str
    tied: tuple[str, ...]
    """Candidates that no score tells from the chosen one."""
    pareto: tuple[str, ...]
    """Candidates that none exceeds in one score without falling behind in another."""
    regressions: tuple[Regression, ...]
    compared: int
    """Parts that were compared with the parent."""
    verdict: str


def choose(candidates: Sequence[Candidate], by: Sequence[By], parent: Candidate | None) -> Choice:
    """The best candidate by the first score; where that is a tie, by the second among those, and so on.

    Two candidates tie in a score if the 95% interval of their difference contains 0. A tie in all scores is a tie: the
    higher mean of the first score is taken, and the verdict says so.
    """
    left, sentences = list(candidates), []
    for place, score in enumerate(by):
        best = max(left, key=lambda c: c.means[place])
        left = [c for c in left if c is best or _ties(best, c, score)]
        names = ", ".join(c.name for c in left if c is not best)
        head = f"{score.task} ({score.metric}): {best.name} is best with {best.means[place]:.2%}"
        sentences.append(f"{head}; no difference that 95% intervals show to {names}" if names else head)
        if len(left) == 1:
            break
    chosen = max(left, key=lambda c: c.means)
    tied = tuple(c.name for c in left if c is not chosen)
    if len(candidates) == 1:
        last = f"{chosen.name} is the only candidate"
    elif tied:
        last = f"a tie: {chosen.name} has the higher mean, but any of {', '.join(tied)} would do"
    else:
        last = f"selected: {chosen.name}"
    regressions, compared = _regressions(chosen, parent, by) if parent is not None else ([], 0)
    return Choice(
        chosen=chosen.name,
        tied=tied,
        pareto=pareto(candidates),
        regressions=tuple(regressions),
        compared=compared,
        verdict="; ".join([*sentences, last]),
    )


def pareto(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Names of those that no other candidate equals or exceeds in every score and exceeds in one."""

    def behind(one: Candidate, other: Candidate) -> bool:
        pairs = list(zip(one.means, other.means, strict=True))
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    return tuple(c.name for c in candidates if not any(behind(c, other) for other in candidates))


def change(one: dict[str, Item], other: dict[str, Item], metric: str) -> Interval | None:
    """The mean of ``one - other`` over the items that both have; None = there are none."""
    keys = sorted(one.keys() & other.keys())
    if not keys:
        return None
    ours, theirs = ([its[key].values[metric][0] for key in keys] for its in (one, other))
    return difference(ours, theirs, [one[key].values[metric][1] for key in keys])


def _ties(best: Candidate, other: Candidate, by: By) -> bool:
    found = change(best.of(by), other.of(by), by.metric)
    return found is None or found.low <= 0 <= found.high


def _regressions(chosen: Candidate, parent: Candidate, by: Sequence[By]) -> tuple[list[Regression], int]:
    """Tasks, subjects, tags and languages in which the whole interval of the change is below 0."""
    found, compared = [], 0
    for score in by:
        ours, theirs = chosen.of(score), parent.of(score)
        for name, belongs in _parts(score, list(ours.values())):
            mine = {key: item for key, item in ours.items() if belongs(item)}
            its = change(mine, theirs, score.metric)
            compared += its is not None
            if its is not None and its.high < 0:
                found.append(Regression(part=name, metric=score.metric, change=its))
    return found, compared


def _parts(by: By, items: Sequence[Item]) -> list[tuple[str, Callable[[Item], bool]]]:
    """The task itself, the tasks inside it, its tags and its languages: a name, and which items belong to it."""
    found: list[tuple[str, Callable[[Item], bool]]] = [(by.task, lambda item: True)]
    tasks = sorted({item.task for item in items} - {by.task})
    found += [(task, lambda item, task=task: item.task == task) for task in tasks]  # type: ignore[misc]
    tags = sorted({tag for item in items for tag in item.tags})
    found += [(f"{by.task}, tag {tag}", lambda item, tag=tag: tag in item.tags) for tag in tags]  # type: ignore[misc]
    languages = sorted({item.language for item in items} - {""})
    if len(languages) > 1:
        found += [
            (f"{by.task}, language {language}", lambda item, language=language: item.language == language)  # type: ignore[misc]
            for language in languages
        ]
    return found
