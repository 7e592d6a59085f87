"""The recipe hash: what must be equal for two runs to be the same experiment."""

from __future__ import annotations

import hashlib
import json

from colosseum.recipe.schema import Recipe


def recipe_hash(recipe: Recipe) -> str:
    """sha256 of the canonical JSON of all sections except name, cluster and resources.time_limit."""
    data = recipe.as_data()
    del data["name"], data["cluster"], data["resources"]["time_limit"]
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
