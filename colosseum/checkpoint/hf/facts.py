"""model.json: facts about an imported checkpoint that colosseum.json does not have. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from colosseum.errors import RefusedInput
from colosseum.reading import Unreadable, read_bytes
from colosseum.recipe.schema import Model, Tokenizer
from colosseum.recipe.tasks import ChatTokens

NAME = "model.json"
TOKENIZER = "tokenizer"
"""The folder of the tokenizer's files, inside the checkpoint folder."""


class ModelFacts(BaseModel):
    """The model of an imported checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: Literal["colosseum.model/1"] = Field("colosseum.model/1", alias="schema")
    name: str
    """Of the folder it came from."""
    architecture: str | None
    """As which it was imported; None = a run wrote it."""
    model: Model
    tokenizer: Tokenizer | None
    """Its path is relative to the checkpoint's folder; None = it came without one."""
    chat_tokens: ChatTokens | None = None
    """Of a model trained to chat in them."""


def read_facts(folder: Path) -> ModelFacts | None:
    """Reads the model.json of a folder; None = it has none.

    Raises:
        RefusedInput: it cannot be read.
    """
    try:
        return ModelFacts.model_validate_json(read_bytes(folder / NAME))
    except FileNotFoundError:
        return None
    except (OSError, Unreadable, ValidationError) as error:
        raise RefusedInput(f"{folder / NAME} cannot be read, or is not a valid model description") from error
