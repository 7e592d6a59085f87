"""Every option of Megatron-LM, every key of NeMo 1.x and NeMo-Aligner (``options_*.tsv``).

The first lines of each list name its sources.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """What ``import-config`` does with an option that no field takes: refuse, decide, harmless; and why."""

    kind: str
    reason: str


@functools.cache
def treatments(tool: str) -> Mapping[str, Treatment]:
    """Rows of ``treatment_TOOL.tsv`` by option, or by pattern."""
    found = rows(tool, prefix="treatment")
    kinds = {"refuse": "refused", "decide": "decide", "harmless": "harmless"}
    return {row["option"]: Treatment(kind=kinds[row["kind"]], reason=row["reason"]) for row in found}


def rows(name: str, prefix: str = "options") -> Iterator[dict[str, str]]:
    """Rows of ``options_NAME.tsv``."""
    text = resources.files("colosseum.engines").joinpath(f"{prefix}_{name}.tsv").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    yield from csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)


@functools.cache
def megatron_options() -> Mapping[str, Mapping[str, str]]:
    """Rows by option; ``values`` is how many it takes (0, 1, ?, * or +)."""
    return {row["option"]: row for row in rows("megatron_lm")}


TEMPLATES = {"cpt": "nemo1_gpt_config", "sft": "aligner_sft", "dpo": "aligner_dpo"}


@functools.cache
def nemo1_keys() -> frozenset[str]:
    """Dotted keys of all templates, and keys that NeMo reads although no template has them."""
    return frozenset(row["key"] for name in (*TEMPLATES.values(), "nemo1_absent") for row in rows(name))


@functools.cache
def nemo1_defaults(task: str) -> Mapping[str, Any]:
    """Defaults in the template of a task, including null; interpolations and ``???`` are left out."""
    found = {row["key"]: yaml.safe_load(row["default"]) for row in rows(TEMPLATES[task])}
    return {
        key: _number(value)
        for key, value in found.items()
        if not (isinstance(value, str) and (value == "???" or "${" in value))
    }


def _number(value: Any) -> Any:
    """``2e-4``: text to PyYAML, a number to NeMo; ``None`` in the lists is null."""
    if value == "None":
        return None
    try:
        return float(value) if isinstance(value, str) and value[:1].isdigit() and "e" in value else value
    except ValueError:
        return value
