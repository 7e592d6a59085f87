"""What a value must be, in plain words, for each kind of error that pydantic finds: its own words name Python types."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from colosseum.terminal import one_line

_RULES = {
    "missing": "must be given",
    "union_tag_not_found": "must be given",
    "extra_forbidden": "unknown key",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "none_required": "must be null",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a section of keys",
    "model_type": "must be a section of keys",
    "model_attributes_type": "must be a section of keys",
    "json_invalid": "is not valid JSON",
}
_BOUNDS = (("ge", "at least"), ("gt", "greater than"), ("le", "at most"), ("lt", "less than"))


def rule_of(item: Any) -> str:
    """What is asked of the value of one of ``ValidationError.errors()``."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "value_error":
        return str(context.get("error", item["msg"]))
    if kind == "literal_error":
        return f"must be {context['expected'].replace(chr(39), '')}"
    if kind == "string_pattern_mismatch":
        return f"must match {context.get('pattern')}"
    for key, words in _BOUNDS:
        if key in context:
            limit = context[key]
            return f"must be {words} {limit if isinstance(limit, int) else f'{limit:g}'}"
    return _RULES.get(kind, str(item["msg"]))


def first_of(error: ValidationError, limit: int = 300) -> str:
    """The first fault of a document, in one line: its field and the rule; of the document itself, what it is."""
    item = error.errors(include_url=False)[0]
    if not item["loc"]:
        is_none = item["type"] in ("model_type", "model_attributes_type", "dict_type")
        return f"it holds {_named(item['input'])} and no section of keys" if is_none else f"it {rule_of(item)}"
    return one_line(f"{'.'.join(map(str, item['loc']))}: {rule_of(item)}", limit)


def _named(value: Any) -> str:
    if value is None:
        return "nothing"
    names = {bool: "true or false", str: "text", list: "a list", tuple: "a list"}
    return names.get(type(value), "a number")
