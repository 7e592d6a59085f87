"""model.json: what lies beside an imported checkpoint and no colosseum.json says. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from colosseum.errors import RefusedInput
from colosseum.recipe.schema import Model, Tokenizer

NAME = "model.json"
TOKENIZER = "tokenizer"
"""The folder of the tokenizer's files, inside the checkpoint's."""


class ModelFacts(BaseModel):
    """The model of a checkpoint that no run wrote."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: Literal["colosseum.model/1"] = Field("colosseum.model/1", alias="schema")
    name: str
    """Of the folder it came from."""
    architecture: str
    model: Model
    tokenizer: Tokenizer | None
    """Its path is relative to the checkpoint's folder; None = it came without one."""


def read_facts(folder: Path) -> ModelFacts | None:
    """The model.json of a folder; None = it has none.

    Raises:
        RefusedInput: it cannot be read.
    """
    try:
        return ModelFacts.model_validate_json((folder / NAME).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise RefusedInput(f"{folder / NAME} cannot be read as a model's description") from error
