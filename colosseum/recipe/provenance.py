"""Where every value was set, and pydantic's errors as Faults with that location."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from colosseum.errors import Fault
from colosseum.recipe import base, schema, walk
from colosseum.recipe.describe import catalogue
from colosseum.recipe.override import nearest
from colosseum.recipe.source import Source
from colosseum.recipe.tasks import TASKS
from colosseum.recipe.wording import rule_of

Path_ = tuple[str, ...]
QUOTE_BOOL = "YAML reads an unquoted no, off, on, yes, true or false as a boolean: put it in quotes"
QUOTE_NUMBER = "YAML reads it as a number: put it in quotes"
DURATION_AS_INT = "YAML reads 24:00:00 as an integer: write a duration with a unit, such as 24h, 90m or 1-00:00:00"
MAX_FAULTS = 100
_MOE = ("moe", "expert", "router")


_SYNONYMS = {
    "learning_rate": "optimizer.lr",
    "min_learning_rate": "optimizer.min_lr",
    "global_batch_size": "batch.gbs",
    "batch_size": "batch.gbs",
    "micro_batch_size": "batch.mbs",
    "sequence_length": "batch.seq_length",
    "seq_len": "batch.seq_length",
    "max_steps": "train.steps",
    "train_iters": "train.steps",
    "tensor_model_parallel_size": "parallelism.tp",
    "pipeline_model_parallel_size": "parallelism.pp",
    "context_parallel_size": "parallelism.cp",
}
"""What other tools call a field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One location (file and line, or command line) that sets a field."""

    value: Any
    where: str
    """``file:line`` or ``command line``."""


@dataclass(frozen=True, slots=True)
class _Place:
    layer: int
    where: str
    is_leaf: bool


@dataclass(slots=True)
class Provenance:
    """The location of every value; recorded while files and arguments are merged."""

    settings: dict[Path_, list[Setting]] = field(default_factory=dict)
    """Leaves (a list is one leaf) and every setting of each, in order."""
    places: dict[Path_, _Place] = field(default_factory=dict)
    """The last location of every path, including sections and list items."""
    layer: int = 0

    def record(self, prefix: Path_, value: Any, where: Mapping[Path_, str] | str) -> None:
        """Record that ``value`` was merged at ``prefix``; ``where`` is one location, or one per path below it."""
        self.layer += 1
        self._record(prefix, (), value, where, in_list=False)

    def _record(self, prefix: Path_, below: Path_, value: Any, where: Mapping[Path_, str] | str, in_list: bool) -> None:
        path = prefix + below
        place = where if isinstance(where, str) else where.get(below, "")
        is_leaf = not isinstance(value, dict)
        self.places[path] = _Place(self.layer, place, is_leaf)
        if is_leaf and not in_list:
            self.settings.setdefault(path, []).append(Setting(value=value, where=place))
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            self._record(prefix, (*below, str(key)), item, where, in_list or is_leaf)

    def forget(self, path: Path_) -> None:
        """``path`` was reset to its default."""
        for known in [p for p in self.places if p[: len(path)] == path]:
            del self.places[known]
            self.settings.pop(known, None)

    def where(self, path: str) -> str:
        """Location of a dotted path or of its closest parent that has one; empty for a default.

        A section that no file sets as a whole has the location of its first key.
        """
        parts = tuple(path.split("."))
        if where := self._trace(parts)[0]:
            return where
        return next((place.where for known, place in self.places.items() if known[: len(parts)] == parts), "")

    def _trace(self, path: Path_) -> tuple[str, bool]:
        """Location of the closest path, and whether ``path`` is still set: a later leaf above may have replaced it."""
        where, cutoff, stands = "", 0, False
        for end in range(1, len(path) + 1):
            place = self.places.get(path[:end])
            stands = place is not None and place.layer >= cutoff
            if place is not None and stands:
                where = place.where or where
                cutoff = place.layer if place.is_leaf else cutoff
        return where, stands

    def origins(self) -> dict[str, tuple[Setting, ...]]:
        return {".".join(path): tuple(found) for path, found in self.settings.items() if self._trace(path)[1]}


def fields_of(path: Sequence[str], data: Any) -> dict[str, Any] | None:
    """YAML names and annotations of the section at ``path``; None if the schema has no such section."""
    model: Any = schema.Recipe
    here = data
    for part in path:
        fields = walk.fields(model)
        here = here.get(part) if isinstance(here, dict) else None
        if isinstance(model, type) and part in fields:
            model = _section(fields[part].annotation, here)
        elif part.isdecimal():
            continue
        else:
            return None
        if model is None:
            return None
    return walk.fields(model)


def default_of(path: Sequence[str], data: Any) -> Any:
    """The schema's default of one field.

    Raises:
        KeyError: there is no such field, it has no default, or it is a section.
    """
    info = (fields_of(path[:-1], data) or {})[path[-1]]
    if info.is_required() or isinstance(info.default, BaseModel | tuple | dict):
        raise KeyError(path[-1])
    return str(info.default) if isinstance(info.default, Source) else info.default


def _section(annotation: Any, value: Any) -> type[BaseModel] | None:
    found = walk.sections(annotation)
    if len(found) > 1:
        kind = value.get("kind") if isinstance(value, dict) else None
        return TASKS.get(kind) if isinstance(kind, str) else None
    return found[0] if found else None


def faults_of(error: ValidationError, data: Mapping[str, Any], provenance: Provenance) -> list[Fault]:
    """One Fault per field, with the names used in YAML; the errors of a union's branches become one sentence."""
    grouped: dict[Path_, list[Any]] = {}
    for item in error.errors(include_url=False, include_context=True, include_input=True):
        grouped.setdefault(_path(item, data), []).append(item)
    return [_fault(path, items, data, provenance) for path, items in itertools.islice(grouped.items(), MAX_FAULTS)]


def _path(item: Any, data: Any) -> Path_:
    """pydantic's location without the names of union branches."""
    loc = list(item["loc"])
    if len(loc) > 1 and loc[0] == "task" and loc[1] in TASKS:
        del loc[1]
    if item["type"].startswith("union_tag"):
        loc.append("kind")
        return tuple(map(str, loc))
    path: list[str] = []
    here = data
    for i, part in enumerate(loc):
        known = part in here if isinstance(here, dict) else isinstance(here, list) and part in range(len(here))
        if known:
            here = here[part]
        elif not (item["type"] == "missing" and i == len(loc) - 1):
            continue
        path.append(str(part))
    return tuple(path)


def _fault(path: Path_, items: list[Any], data: Any, provenance: Provenance) -> Fault:
    dotted = ".".join(path)
    value = items[0]["input"]
    if items[0]["type"].startswith("union_tag"):
        value = value.get("kind") if isinstance(value, dict) else value
    rules: list[str] = []
    near: list[Any] = []
    for item in items:
        if _is_noise(item, items):
            continue
        rule, close = _rule(item, path, data)
        if rule not in rules:
            rules.append(rule)
        near += [c for c in close if c not in near]
    missing = items[0]["type"] in ("missing", "union_tag_not_found")
    text = " or ".join(rules)
    return Fault(
        path=dotted,
        value=None if missing else shown(value),
        rule=f"{text}; {hint}" if (hint := _hint(path, value, items, data)) else text,
        nearest=tuple(near),
        where=provenance.where(dotted),
    )


def _is_noise(item: Any, items: list[Any]) -> bool:
    """Drop the type errors of union branches where another branch has a range error."""
    return item["type"] == "none_required" and len(items) > 1


def _rule(item: Any, path: Path_, data: Any) -> tuple[str, tuple[Any, ...]]:
    kind, context, value = item["type"], item.get("ctx", {}), item["input"]
    if kind == "extra_forbidden":
        if path[0] == "model" and any(word in path[-1].lower() for word in _MOE):
            return "unknown key: MoE models are out of scope, a model is dense", ()
        return "unknown key", _meant(path, data)
    if kind == "union_tag_invalid":
        return "must be cpt, sft or dpo", nearest(str(shown(context.get("tag"))), TASKS)
    if kind == "literal_error":
        return rule_of(item), nearest(str(shown(value)), _literals(path, data))
    bounds = tuple(context[key] for key in ("ge", "le") if key in context)
    return rule_of(item), bounds or tuple(context.get("nearest", ()))


def _meant(path: Path_, data: Any) -> tuple[str, ...]:
    """What an unknown key may mean: a field of that name in another section, or one of a similar name in its own."""
    name = _SYNONYMS.get(path[-1], path[-1])
    elsewhere = [known for known in catalogue() if known == name or known.endswith(f".{name}")]
    return tuple(elsewhere[:3]) or nearest(path[-1], fields_of(path[:-1], data) or ())


def _literals(path: Path_, data: Any) -> tuple[str, ...]:
    info = (fields_of(path[:-1], data) or {}).get(path[-1]) if path else None
    if info is None:
        return ()
    return tuple(o for m in walk.members(info.annotation) if get_origin(m) is Literal for o in map(str, get_args(m)))


def _hint(path: Path_, value: Any, items: list[Any], data: Any) -> str:
    kinds = {item["type"] for item in items}
    if not kinds & {"string_type", "literal_error", "union_tag_invalid"}:
        return ""
    info = (fields_of(path[:-1], data) or {}).get(path[-1]) if path else None
    if info is not None and any(getattr(m, "func", None) is base.checked_duration for m in info.metadata):
        return DURATION_AS_INT if isinstance(value, int) and not isinstance(value, bool) else ""
    if kinds & {"bool_type", "int_type", "float_type"}:
        return ""
    if isinstance(value, bool):
        return QUOTE_BOOL
    if value is None:
        return "YAML reads an unquoted null as no value" + (': write "null"' if "null" in _literals(path, data) else "")
    return QUOTE_NUMBER if isinstance(value, int | float) and "string_type" in kinds else ""


def shown(value: Any) -> Any:
    """A short JSON-able form of a rejected value."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 10**30 else "a number of more than 30 digits"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, dict | list):
        value = f"{'a section' if isinstance(value, dict) else 'a list'} of {len(value)}" if len(value) != 0 else value
        return value
    text = str(value)
    return text if len(text) <= 200 else text[:197] + "..."
