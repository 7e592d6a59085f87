"""The differences between two recipes, each with its kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import RenderableType
from rich.text import Text

from colosseum.console import columns
from colosseum.recipe.describe import text_of
from colosseum.recipe.schema import Recipe

Kind = Literal["numerics", "performance", "operations"]
KINDS: dict[Kind, str] = {
    "numerics": "different model or different training",
    "performance": "same training, different speed or memory use; rounding may differ",
    "operations": "where it runs, what is saved and monitored",
}
_PERFORMANCE = ("parallelism", "recompute", "overlap", "fusion", "hardware", "resources", "batch.mbs")
_PERFORMANCE_FIELDS = (
    "optimizer.distributed",
    "task.logprob_mbs",
    "task.reference",
    "task.num_workers",
    "task.packing",
)
_OPERATIONS = (
    "name",
    "engine",
    "cluster",
    "stability",
    "resources.time_limit",
    "data.cache_dir",
    "data.record_samples",
)
_OPERATIONS_FIELDS = (
    "train.val_every_steps",
    "train.val_steps",
    "train.log_every_steps",
    "checkpoint.format",
    "checkpoint.every_steps",
    "checkpoint.keep_last",
    "checkpoint.keep_every",
    "checkpoint.async",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field whose value differs between two recipes."""

    path: str
    kind: Kind
    first: Any
    second: Any
    """``ABSENT`` where only the other recipe has the field: a list item, or a field of another task."""


ABSENT = "(absent)"


def kind_of(path: str) -> Kind:
    """The kind of a change to a dotted field."""

    def below(prefixes: tuple[str, ...]) -> bool:
        return any(path == prefix or path.startswith(f"{prefix}.") for prefix in prefixes)

    if below(_OPERATIONS + _OPERATIONS_FIELDS):
        return "operations"
    if below(_PERFORMANCE + _PERFORMANCE_FIELDS):
        return "performance"
    return "numerics"


def differences(first: Recipe, second: Recipe) -> list[Difference]:
    """All of them, numerics first, in the schema's order."""
    a, b = dict(_leaves(first.as_data(), "")), dict(_leaves(second.as_data(), ""))
    paths = list(dict.fromkeys([*a, *b]))
    found = [
        Difference(path=path, kind=kind_of(path), first=a.get(path, ABSENT), second=b.get(path, ABSENT))
        for path in paths
        if a.get(path, ABSENT) != b.get(path, ABSENT)
    ]
    order = list(KINDS)
    return sorted(found, key=lambda difference: order.index(difference.kind))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Leaves of sections and of lists of sections; a plain list is one value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}.{number}")
    else:
        yield path, value


def differences_text(found: Sequence[Difference], first: str, second: str) -> list[RenderableType]:
    """A table for each kind of difference, headed by what the recipes are called."""
    parts: list[RenderableType] = []
    for kind, meaning in KINDS.items():
        rows = [(d.path, _text(d.first), Text(_text(d.second), style="bold")) for d in found if d.kind == kind]
        if rows:
            parts.append(Text(kind, style="bold").append(f": {meaning}", style="not bold"))
            parts += [columns(rows, ("field", first, second), pad_edge=False), ""]
    return parts or ["no difference"]


def _text(value: object) -> str:
    return "" if value == ABSENT else text_of(value)
