"""Rules between fields: what megatron-core, its engines or arithmetic refuse although each value alone is fine.

``faults`` is pure and knows every rule; the rules stand by topic in ``rules_layout``, ``rules_precision`` and
``rules_training``, each a generator of Findings. A field that says ``auto`` is never at fault: the planner fills it
with a legal value. What an engine cannot do is the engine's to say (``engines/``), not ours.
"""

from __future__ import annotations

from colosseum.errors import Fault
from colosseum.recipe import rules_layout, rules_precision, rules_training
from colosseum.recipe.rules_base import Facts, Finding, Rule, replaced, value_at
from colosseum.recipe.schema import Recipe

RULES: tuple[Rule, ...] = (*rules_layout.RULES, *rules_precision.RULES, *rules_training.RULES)
MAX_NEAREST = 3
MAX_TRIED = 24
"""Candidates tried a fault: bounds the time that a hostile recipe can take."""

Key = tuple[str, str]


def faults(recipe: Recipe) -> list[Fault]:
    """Every broken rule, in the order of the rules; ``where`` is left to the loader."""
    found = _broken(recipe)
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


def _broken(recipe: Recipe) -> dict[Key, Finding]:
    """Findings by rule and path."""
    facts = Facts.of(recipe)
    return {(rule.__name__, finding.path): finding for rule in RULES for finding in rule(facts)}


def _legal(recipe: Recipe, key: Key, finding: Finding, known: set[Key]) -> list[object]:
    """The best candidates that remove the fault: fewest faults left first, then in the rule's order.

    None of them breaks a rule that holds now, unless every candidate does: then more than one field must change.
    Where a value makes known what the fault had left unknown (dp, say), rules speak that were silent before: what they
    say is not of its making.
    """
    scored: list[tuple[int, int, object]] = []
    unknown = _unknown(Facts.of(recipe))
    for value in finding.candidates(MAX_TRIED):
        changed = replaced(recipe, finding.path, value)
        left = set(_broken(changed))
        if key not in left:
            silent = unknown - _unknown(Facts.of(changed))
            scored.append((0 if silent else len(left - known), len(left), value))
    scored.sort(key=lambda score: score[:2])
    fewest = scored[0][0] if scored else 0
    return [value for new, _, value in scored if new == 0 or fewest > 0][:MAX_NEAREST]


def _unknown(facts: Facts) -> set[str]:
    """What the rules that need it pass over."""
    names = ("dp", "microbatches", "stage_layers", "total_steps")
    return {name for name in names if getattr(facts, name) is None}


def _plain(value: object) -> object:
    """As JSON and YAML say it."""
    return list(value) if isinstance(value, tuple) else value
