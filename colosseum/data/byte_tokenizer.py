"""A tokenizer.json whose ids are bytes and a few special tokens, for rehearsals, which do not read the user's data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from colosseum.atomic import replacing


def write_byte_tokenizer(path: Path, special: Sequence[str]) -> None:
    """Writes it; the ids of ``special`` follow the 256 byte ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    with replacing(path) as temporary:
        tokenizer.save(str(temporary))
