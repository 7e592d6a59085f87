"""A JSON Schema of recipe files, for editors: it describes what a user writes, not a resolved recipe.

A file may leave out any field (the defaults list or the schema provides it), and any value may be a reference to
another field (``${model.hidden_size}``).
"""

from __future__ import annotations

from typing import Any

from colosseum.recipe.schema import Recipe

REFERENCE = {"type": "string", "pattern": r"\$\{[^}]+\}"}
DEFAULTS = {
    "type": "array",
    "description": "recipes and group files to merge, in order; _self_ is this file",
    "items": {"anyOf": [{"type": "string"}, {"type": "object"}]},
}


def recipe_schema() -> dict[str, Any]:
    """A draft 2020-12 schema."""
    full = Recipe.model_json_schema(by_alias=True)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Colosseum recipe",
        **{key: _relaxed(value) for key, value in full.items() if key not in ("title", "required")},
    }
    schema["properties"] = {"defaults": DEFAULTS, **schema["properties"]}
    return schema


def _relaxed(node: Any) -> Any:
    """No field is required, and a reference is allowed in place of a value."""
    if isinstance(node, list):
        return [_relaxed(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: value if key in ("default", "enum") else _relaxed(value) for key, value in node.items()}
    kept.pop("required", None)
    if "discriminator" in kept:  # would require the key in this file; the types distinguish tasks
        kept["anyOf"] = kept.pop("oneOf")
        del kept["discriminator"]
    if kept.get("type") in ("integer", "number", "boolean", "array") or "enum" in kept or "const" in kept:
        about = {key: kept.pop(key) for key in ("title", "description", "default") if key in kept}
        return {**about, "anyOf": [kept, REFERENCE]}
    return kept
