"""The stage table: the shipped recipe of each --stage."""

from __future__ import annotations

from colosseum.errors import Fault, RefusedInput

DEFAULT_FAMILY = "colosseum-355b"
CPT_STAGES = {"bf16-4k": "cpt-4k-bf16", "expand-16k": "cpt-16k-expand", "fp8": "cpt-fp8"}
STAGES = {"cpt": CPT_STAGES}
"""Of the tasks that are trained in several stages; the others have one recipe, named as the task."""


def recipe_of_stage(kind: str, stage: str | None, family: str | None) -> str:
    """Recipe name ``family/stem`` for a task kind (cpt, sft, dpo), a --stage and a --family.

    Raises:
        RefusedInput: cpt without --stage, or a stage that the kind does not have.
    """
    stages = STAGES.get(kind, {})
    if stage == "debug":
        return f"{family or 'debug'}/{next(iter(stages.values()), kind)}"
    family = family or DEFAULT_FAMILY
    if stage is None and not stages:
        return f"{family}/{kind}"
    if stage in stages:
        return f"{family}/{stages[stage]}"
    rule = "give a RECIPE or a --stage" if stage is None else f"{kind} has no such stage"
    legal = (*stages, "debug")
    raise RefusedInput([Fault(path="--stage", value=stage, rule=rule, nearest=legal, where="command line")])
