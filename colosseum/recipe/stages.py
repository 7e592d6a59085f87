"""The stage table: the shipped recipe of each --stage."""

from __future__ import annotations

from colosseum.errors import Fault, RefusedInput

DEFAULT_FAMILY = "colosseum-355b"
CPT_STAGES = {"bf16-4k": "cpt-4k-bf16", "expand-16k": "cpt-16k-expand", "fp8": "cpt-fp8"}


def recipe_of_stage(kind: str, stage: str | None, family: str | None) -> str:
    """Recipe name ``family/stem`` for a task kind (cpt, sft, dpo), a --stage and a --family.

    Raises:
        RefusedInput: cpt without --stage, or a stage that the kind does not have.
    """
    if stage == "debug":
        return f"{family or 'debug'}/{'cpt-4k-bf16' if kind == 'cpt' else kind}"
    family = family or DEFAULT_FAMILY
    legal = (*CPT_STAGES, "debug") if kind == "cpt" else ("debug",)
    if kind != "cpt" and stage is None:
        return f"{family}/{kind}"
    if kind == "cpt" and stage in CPT_STAGES:
        return f"{family}/{CPT_STAGES[stage]}"
    rule = "give a RECIPE or a --stage" if stage is None else f"{kind} has no such stage"
    raise RefusedInput([Fault(path="--stage", value=stage, rule=rule, nearest=legal, where="command line")])
