"""The release of a cluster's image against those that an engine's renderer was verified with."""

from __future__ import annotations

import re

from colosseum.engines.registry import engine_of
from colosseum.recipe.derived import image_field, image_of
from colosseum.recipe.schema import Recipe

_RELEASE = re.compile(r"(?<![A-Za-z0-9])nemo[:+_-](\d\d\.\d\d)(?!\d)")
"""``…/nemo:25.04.02`` of a registry, ``nvidia+nemo+25.04.sqsh`` as enroot names a file, ``nemo-25.04.sqsh``."""


def release_of(image: str) -> str | None:
    """Year and month of a NeMo image, by its name; None = it says none."""
    match = _RELEASE.search(image)
    return None if match is None else match[1]


def image_warnings(recipe: Recipe) -> tuple[str, ...]:
    """One sentence where the image of the recipe's cluster is of a release outside the verified ones."""
    image, releases = image_of(recipe.cluster, recipe.engine), engine_of(recipe.engine).about.releases
    release = None if image is None else release_of(image)
    if releases is None or release is None or release in releases:
        return ()
    return (
        f"{image_field(recipe.cluster, recipe.engine)} = {image} is release {release}; engine {recipe.engine} was "
        f"verified with {releases}",
    )
