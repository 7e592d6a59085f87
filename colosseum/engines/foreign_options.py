"""Every option of Megatron-LM, every key of NeMo 1.x and NeMo-Aligner (``options_*.tsv``).

The first lines of each list name its sources.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import yaml


def rows(name: str) -> Iterator[dict[str, str]]:
    """Rows of ``options_NAME.tsv``."""
    text = resources.files("colosseum.engines").joinpath(f"options_{name}.tsv").read_text(encoding="utf-8")
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
