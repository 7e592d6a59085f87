"""``colosseum schema``: the JSON Schema of recipe files."""

from __future__ import annotations

import json
import sys


def schema() -> None:
    """Print the JSON Schema of recipe files (for editors).

    Save it (colosseum schema > recipe.schema.json) and name it in a recipe's first line:

    # yaml-language-server: $schema=recipe.schema.json
    """
    from colosseum.recipe.jsonschema import recipe_schema

    sys.stdout.write(json.dumps(recipe_schema(), indent=2) + "\n")
