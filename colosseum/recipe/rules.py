"""Cross-field rules: combinations that megatron-core, its engines or arithmetic do not allow.

``faults`` is pure and checks every rule. The rules are grouped by topic in ``rules_layout``, ``rules_precision`` and
``rules_training``; each is a generator of Findings. A field set to ``auto`` never breaks a rule: the planner fills in
a legal value. Limits of one engine are checked by that engine (``engines/``).
"""

from __future__ import annotations

from colosseum.errors import Fault
from colosseum.recipe import rules_layout, rules_precision, rules_training
from colosseum.recipe.rules_base import Facts, Finding, Rule, replaced, value_at
from colosseum.recipe.schema import Recipe

RULES: tuple[Rule, ...] = (*rules_layout.RULES, *rules_precision.RULES, *rules_training.RULES)
MAX_NEAREST = 3
MAX_TRIED = 24
"""Candidates tried per fault; bounds the time that a hostile recipe can take."""

Key = tuple[str, str]


def faults(recipe: Recipe) -> list[Fault]:
    """Every broken rule, in the order of the rules; the loader adds ``where``."""
    found = _violations(recipe)
    known = set(found)
    return [
        Fault(
            path=finding.path,
            value=value_at(recipe, finding.path),
            rule=finding.rule,
            nearest=tuple(_plain(v) for v in _legal(recipe, key, finding, known)),
        )
        for key, finding in found.items()
    ]


def _violations(recipe: Recipe) -> dict[Key, Finding]:
    """Findings by rule and path."""
    facts = Facts.of(recipe)
    return {(rule.__name__, finding.path): finding for rule in RULES for finding in rule(facts)}


def _legal(recipe: Recipe, key: Key, finding: Finding, known: set[Key]) -> list[object]:
    """The best candidates that remove the fault: those that leave the fewest faults first, then in the rule's order.

    A candidate that breaks another rule is left out, unless all do: then more than one field must change.
    A candidate may make a fact known that the fault had left unknown (such as dp). Rules that need this fact then apply
    for the first time; their faults are not counted against the candidate.
    """
    scored: list[tuple[int, int, object]] = []
    unknown = _unknown(Facts.of(recipe))
    for value in finding.candidates(MAX_TRIED):
        changed = replaced(recipe, finding.path, value)
        left = set(_violations(changed))
        if key not in left:
            silent = unknown - _unknown(Facts.of(changed))
            scored.append((0 if silent else len(left - known), len(left), value))
    scored.sort(key=lambda score: score[:2])
    fewest = scored[0][0] if scored else 0
    return [value for new, _, value in scored if new == 0 or fewest > 0][:MAX_NEAREST]


def _unknown(facts: Facts) -> set[str]:
    """The facts that are not known; rules that need one of them are skipped."""
    names = ("dp", "microbatches", "stage_layers", "total_steps")
    return {name for name in names if getattr(facts, name) is None}


def _plain(value: object) -> object:
    """The value as JSON and YAML write it."""
    return list(value) if isinstance(value, tuple) else value
