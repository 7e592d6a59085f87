"""model.json and tokenizer/ beside a checkpoint that a command made of another: it says what it is wherever it lies."""

from __future__ import annotations

import shutil
from pathlib import Path

from colosseum.checkpoint.hf import facts
from colosseum.checkpoint.hf.origin import Origin, origin_of
from colosseum.checkpoint.hf.source import GENERATION, TOKENIZER_FILES
from colosseum.checkpoint.hf.text_files import NAMES
from colosseum.checkpoint.metadata import CheckpointMetadata
from colosseum.errors import RefusedInput
from colosseum.recipe.schema import Model


def known_origin(checkpoint: Path, metadata: CheckpointMetadata) -> Origin | None:
    """As ``origin_of``; None where nothing says which model it is of."""
    try:
        return origin_of(checkpoint, metadata)
    except RefusedInput:
        return None


def is_description(name: str) -> bool:
    """Whether a file of a checkpoint is one of those that ``carry`` writes."""
    return name == facts.NAME or name.startswith(f"{facts.TOKENIZER}/")


def copy_description(origin: Origin, model: Model, folder: Path) -> list[str]:
    """Writes them into a checkpoint's folder; their names.

    Args:
        model: that of the new checkpoint.
    """
    source = None if origin.tokenizer is None else Path(str(origin.tokenizer.path))
    tokenizer = None
    if origin.tokenizer is not None and source is not None and source.is_file():
        place = folder / facts.TOKENIZER
        place.mkdir(exist_ok=True)
        for name in (*TOKENIZER_FILES, GENERATION):
            if (source.parent / name).is_file():
                shutil.copyfile(source.parent / name, place / name)
        name = NAMES[origin.tokenizer.kind]
        shutil.copyfile(source, place / name)
        tokenizer = origin.tokenizer.model_copy(update={"path": f"{facts.TOKENIZER}/{name}"})
    found = facts.ModelFacts(
        schema="colosseum.model/1",
        name=origin.name,
        architecture=origin.architecture,
        model=model,
        tokenizer=tokenizer,
        chat_tokens=origin.chat_tokens,
    )
    (folder / facts.NAME).write_text(found.model_dump_json(by_alias=True, indent=2) + "\n")
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if _is_ours(p, folder))


def _is_ours(path: Path, folder: Path) -> bool:
    return path.is_file() and is_description(path.relative_to(folder).as_posix())
