"""Prompts that the model never saw the like of: a doubled begin-of-text token, a chat template of another model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from colosseum.errors import RefusedInput

EXAMPLES = 32
"""Prompts that are looked at: a template makes the same mistake in every one."""
CONTROL = re.compile(r"<\|[^|<>\s]{1,40}\|>|<extra_id_\d+>|</?s>|<(?:start|end)_of_turn>|<\uff5c[^<>\s]{1,40}\uff5c>")
"""How models spell their control tokens."""


def check_prompts(model: Any, prompts: Sequence[str], *, chat: bool) -> None:
    """Refuses prompts whose beginning or control tokens are wrong.

    Args:
        model: of the harness, with ``tok_encode``.
        chat: whether a chat template rendered them.

    Raises:
        RefusedInput: BOS comes twice, or the template writes a control string that is no token of the model.
    """
    special = special_ids(model)
    for prompt in prompts[:EXAMPLES]:
        if not prompt:
            continue
        ids = model.tok_encode(prompt)
        if len(ids) > 1 and ids[0] == ids[1] and ids[0] in special:
            writer = (
                "the chat template and the tokenizer both write it" if chat else "the task's own text begins with it"
            )
            raise RefusedInput(f"a prompt begins with the begin-of-text token (id {ids[0]}) twice: {writer}")
        if not chat:
            continue
        for control in sorted(set(CONTROL.findall(prompt))):
            pieces = model.tok_encode(control, add_special_tokens=False)
            if len(pieces) != 1 or pieces[0] not in special:
                raise RefusedInput(
                    f"the chat template writes {control!r}, which is no control token of this model's tokenizer "
                    f"({len(pieces)} tokens): it is the template of another model"
                )


def special_ids(model: Any) -> frozenset[int]:
    """Ids of a model's control tokens."""
    if (known := getattr(model, "special_ids", None)) is not None:
        return frozenset(known)
    tokens = getattr(model.tokenizer, "added_tokens_decoder", {})
    return frozenset(int(i) for i, token in tokens.items() if token.special)
