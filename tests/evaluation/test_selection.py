"""The best checkpoint: ties are ties, the Pareto front, and what the chosen one has forgotten."""

from __future__ import annotations

import random

from colosseum.evaluation.scores import Item
from colosseum.evaluation.selection import By, Candidate, choose, pareto

BY = (By("ifeval", "acc"), By("mmlu", "acc"))
MEMBERS = {"mmlu": ("mmlu_law", "mmlu_physics")}


def items(task: str, right: float, count: int, **more: object) -> list[Item]:
    """The first share of a task's items is answered right."""
    values = [1.0 if n < right * count else 0.0 for n in range(count)]
    shared = {"tags": (), "language": "", **more}
    return [Item(task=task, key=f"{n}", values={"acc": (v, 1.0)}, **shared) for n, v in enumerate(values)]  # type: ignore[arg-type]


def candidate(name: str, ifeval: float, law: float, physics: float, count: int = 400) -> Candidate:
    mine = [*items("ifeval", ifeval, count), *items("mmlu_law", law, count), *items("mmlu_physics", physics, count)]
    means = (ifeval, (law + physics) / 2)
    return Candidate(name=name, run="r", step=1, means=means, items=tuple(mine), members=MEMBERS)


def test_the_first_score_decides_where_it_can() -> None:
    found = choose([candidate("a", 0.5, 0.9, 0.9), candidate("b", 0.6, 0.5, 0.5)], BY, None)
    assert (found.chosen, found.tied) == ("b", ())
    assert found.verdict == "ifeval (acc): b is best with 60.00%; selected: b"


def test_a_tie_in_the_first_score_is_decided_by_the_second() -> None:
    """One item of 400 is no difference; a tenth of them is."""
    found = choose([candidate("a", 0.5, 0.6, 0.6), candidate("b", 0.5025, 0.5, 0.5)], BY, None)
    assert (found.chosen, found.tied) == ("a", ())
    assert "no difference that 95% intervals show to a" in found.verdict


def test_a_tie_in_all_scores_is_a_tie() -> None:
    found = choose([candidate("a", 0.5, 0.5, 0.5), candidate("b", 0.5025, 0.5, 0.5)], BY, None)
    assert (found.chosen, found.tied) == ("b", ("a",))
    assert found.verdict.endswith("a tie: b has the higher mean, but any of a would do")


def test_noise_alone_is_a_tie_nearly_always() -> None:
    """Twenty pairs of equal models: the interval has 95%."""
    rng, ties = random.Random(3), 0
    for _ in range(20):
        pair = []
        for name in "ab":
            mine = [
                Item(task="ifeval", key=str(n), values={"acc": (float(rng.random() < 0.5), 1.0)}, tags=(), language="")
                for n in range(200)
            ]
            mean = sum(i.values["acc"][0] for i in mine) / 200
            pair.append(Candidate(name=name, run="r", step=1, means=(mean,), items=tuple(mine)))
        ties += bool(choose(pair, BY[:1], None).tied)
    assert ties >= 17


def test_the_pareto_front() -> None:
    found = [candidate("a", 0.5, 0.6, 0.6), candidate("b", 0.6, 0.5, 0.5), candidate("c", 0.4, 0.55, 0.55)]
    assert pareto(found) == ("a", "b")
    assert pareto([found[0], found[0]]) == ("a", "a"), "equals are both on it"


def test_what_was_forgotten_is_named_by_subject() -> None:
    """Law is worse, physics is better, the whole of MMLU unchanged."""
    found = choose([candidate("new", 0.5, 0.4, 0.6)], BY, candidate("parent", 0.5, 0.5, 0.5))
    (law,) = found.regressions
    assert (law.part, law.metric) == ("mmlu_law", "acc")
    assert abs(law.change.mean + 0.1) < 1e-9 and law.change.high < 0
    assert found.compared == 4


def test_what_was_forgotten_is_named_by_tag_and_language() -> None:
    def model(name: str, right: float) -> Candidate:
        english = items("own", 0.5, 300, tags=("bonds",), language="en")
        italian = [
            Item(task="own", key=f"it-{i.key}", values=i.values, tags=("tax",), language="it")
            for i in items("own", right, 300)
        ]
        mean = (0.5 + right) / 2
        return Candidate(name=name, run="r", step=1, means=(mean,), items=(*english, *italian))

    found = choose([model("new", 0.3)], [By("own", "acc")], model("parent", 0.6))
    assert [r.part for r in found.regressions] == ["own", "own, tag tax", "own, language it"]
