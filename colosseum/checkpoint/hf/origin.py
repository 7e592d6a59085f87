"""What an export needs besides the tensors: from the run that wrote a checkpoint, or from its model.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from colosseum.bundle import RECIPE
from colosseum.checkpoint.hf import facts
from colosseum.checkpoint.metadata import CheckpointMetadata, ModelShape
from colosseum.errors import RefusedInput
from colosseum.recipe.schema import Model, Recipe, Tokenizer
from colosseum.recipe.tasks import ChatTokens
from colosseum.rundir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A checkpoint's model and where it comes from."""

    name: str
    model: Model
    architecture: str | None
    """The architecture that it was imported from; None = a run wrote it."""
    tokenizer: Tokenizer | None
    """With an absolute path; None = there is no tokenizer."""
    chat_tokens: ChatTokens | None
    """Set if the model was trained on chats with them."""
    recipe: Recipe | None
    run: RunDir | None


def origin_of(checkpoint: Path, metadata: CheckpointMetadata) -> Origin:
    """The origin of a checkpoint folder.

    Raises:
        RefusedInput: it is neither in a run folder nor imported, or its model differs from the one described there.
    """
    origin = _imported(checkpoint) or _of_run(checkpoint)
    shape = ModelShape.of_model(origin.model, metadata.model.seq_length)
    if different := metadata.model.differences(shape):
        raise RefusedInput(f"the model of {checkpoint} differs from that of {origin.name}: {', '.join(different)}")
    return origin


def _imported(checkpoint: Path) -> Origin | None:
    found = facts.read_facts(checkpoint)
    if found is None:
        return None
    tokenizer = found.tokenizer
    if tokenizer is not None:
        tokenizer = tokenizer.model_copy(update={"path": str(checkpoint / str(tokenizer.path))})
    return Origin(
        name=found.name,
        model=found.model,
        architecture=found.architecture,
        tokenizer=tokenizer,
        chat_tokens=found.chat_tokens,
        recipe=None,
        run=None,
    )


def _of_run(checkpoint: Path) -> Origin:
    run = RunDir(checkpoint.resolve().parent.parent)
    file = run.bundle / RECIPE
    if not file.is_file():
        raise RefusedInput(f"{checkpoint} is not in a run folder and has no {facts.NAME}: its model is unknown")
    recipe = Recipe.from_data(yaml.safe_load(file.read_text(encoding="utf-8")))
    task, tokenizer = recipe.alignment, recipe.tokenizer
    own = task is not None and task.template == "chat_tokens" and task.rows != "prompt_response"
    return Origin(
        name=run.root.name,
        model=recipe.model,
        architecture=None,
        tokenizer=None if tokenizer.kind == "null" or tokenizer.path is None else tokenizer,
        chat_tokens=task.chat_tokens if task is not None and own else None,
        recipe=recipe,
        run=run,
    )
