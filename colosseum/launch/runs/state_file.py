"""State files of commands (campaign.json, sweep.json): read back with checked types, or one error message."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar, get_args

from pydantic import StringConstraints, ValidationError

from colosseum import __version__
from colosseum.errors import RefusedInput
from colosseum.reading import Unreadable, read_bytes
from colosseum.recipe.base import Section
from colosseum.recipe.wording import first_of
from colosseum.records import parse_object
from colosseum.terminal import one_line

RunName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""Name of a run folder, which is never a path."""
JobId = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,17}$")]
Kept = TypeVar("Kept", bound=Section)


def read_state_file(path: Path, model: type[Kept]) -> Kept:
    """The file as ``model``, whose field ``schema_`` names the one form that this release reads.

    Raises:
        RefusedInput: it is not there, damaged, or of another release.
    """
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        raise RefusedInput(f"{path.parent} has no {path.name}: nothing was started there") from None
    except Unreadable as error:
        raise RefusedInput(f"{path.parent}: {error}") from error
    found, (wanted,) = parse_object(data), get_args(model.model_fields["schema_"].annotation)
    if found is None:
        raise RefusedInput(f"{path} is damaged: not a JSON object")
    if (schema := found.get("schema")) != wanted:
        shown = one_line(str(schema), 60)
        raise RefusedInput(f"{path} has schema {shown!r}, and this release, {__version__}, reads {wanted!r}")
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise RefusedInput(f"{path} is damaged: {first_of(error)}") from error
