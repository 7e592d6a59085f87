"""The chat format of a checkpoint: from the task that trained it, or from the tokenizer that it was imported with."""

from __future__ import annotations

from pathlib import Path

from colosseum.checkpoint.hf.origin import Origin
from colosseum.checkpoint.hf.text_files import Chat
from colosseum.checkpoint.metadata import CheckpointMetadata
from colosseum.data.align.hf_template import HfTemplate, read_hf_template
from colosseum.data.align.prompts import ChatFormat
from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.tasks import ChatTokens


def chat_format_of(origin: Origin, metadata: CheckpointMetadata) -> ChatFormat:
    """The chat format of a checkpoint.

    Raises:
        RefusedInput: it has no readable tokenizer.json, or lacks the chat template that its task uses.
    """
    tokenizer = origin.tokenizer
    if tokenizer is None or tokenizer.kind != "tokenizer_json":
        kind = "none" if tokenizer is None else tokenizer.kind
        rule = f"the tokenizer.json of {origin.name} is needed to encode prompts"
        raise RefusedInput([Fault(path="tokenizer.kind", value=kind, rule=rule, nearest=("tokenizer_json",))])
    path = Path(str(tokenizer.path))
    return ChatFormat(
        eos=Chat.of(origin).eos,
        tokenizer=path,
        eod=tokenizer.eod,
        template=_template(origin, path),
        seq_length=metadata.model.seq_length,
        response_blank=_is_prompt_response(origin),
    )


def _is_prompt_response(origin: Origin) -> bool:
    task = None if origin.recipe is None else origin.recipe.alignment
    return task is not None and task.rows == "prompt_response"


def _template(origin: Origin, tokenizer: Path) -> ChatTokens | HfTemplate | None:
    if origin.chat_tokens is not None:
        return origin.chat_tokens
    if origin.recipe is not None:
        if origin.recipe.alignment is None or _is_prompt_response(origin):
            return None
        return read_hf_template(tokenizer)
    try:
        return read_hf_template(tokenizer)
    except RefusedInput:
        return None  # a base model comes without one
