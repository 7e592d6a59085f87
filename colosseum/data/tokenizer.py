"""tokenizer.json files: read, and trained on text of one's own without any hub.

Uses the ``tokenizers`` library (extra ``train``), which is imported only here and only when asked.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from colosseum.errors import EnvironmentFault, Fault, RefusedInput

MIN_BYTE_VOCAB = 257
"""256 bytes and the end-of-document token: the smallest vocabulary that can write any text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTokenizer:
    """Text to token ids, with the document's end marked."""

    vocab_size: int
    """Largest id + 1."""
    eod_id: int
    library: Any
    """The ``tokenizers.Tokenizer``."""

    def encode_documents(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text and the end-of-document id; an empty text gives no ids. All cores are used."""
        encodings = self.library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [[*e.ids, self.eod_id] if e.ids else [] for e in encodings]


def load_tokenizer(path: Path, eod: str) -> TextTokenizer:
    """Reads a tokenizer.json.

    Raises:
        EnvironmentFault: the ``tokenizers`` library is missing.
        RefusedInput: the file is missing or broken, or knows no token ``eod``.
    """
    library = _library()
    if not path.is_file():
        raise RefusedInput(f"the tokenizer file {path} does not exist")
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a file that it cannot read
        raise RefusedInput(f"{path} is no tokenizer.json: {error}") from error
    # A file may ask for cutting and padding, meant for inference; a corpus must be kept whole.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # "<|endoftext|>" written inside a document is text, it must not end the document.
    tokenizer.encode_special_tokens = True
    eod_id = tokenizer.token_to_id(eod)
    if eod_id is None:
        special = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
        near = tuple(get_close_matches(eod, special, n=3, cutoff=0.3)) or tuple(special[:5])
        fault = Fault(path="tokenizer.eod", value=eod, rule=f"{path} knows no such token", nearest=near)
        raise RefusedInput([fault])
    vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    return TextTokenizer(vocab_size=vocab_size, eod_id=eod_id, library=tokenizer)


def train_tokenizer(texts: Iterable[str], path: Path, *, vocab_size: int, eod: str, force: bool = False) -> None:
    """Trains a byte-level BPE tokenizer (Sennrich et al. 2016; bytes as in GPT-2) and writes it to ``path``, whole.

    The same texts give the same file.

    Raises:
        EnvironmentFault: the ``tokenizers`` library is missing, or ``path`` not writable.
        RefusedInput: ``path`` exists and ``force`` is false, or the vocabulary cannot hold all bytes.
    """
    library = _library()
    if vocab_size < MIN_BYTE_VOCAB:
        rule = "must hold 256 bytes and the end-of-document token"
        raise RefusedInput([Fault(path="vocabulary", value=vocab_size, rule=rule, nearest=(MIN_BYTE_VOCAB,))])
    if path.exists() and not force:
        raise RefusedInput(f"{path} exists; name another tokenizer file, or replace it with --force")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[eod],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(tokenizer.to_str(pretty=True) + "\n", encoding="utf-8")
        temporary.rename(path)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _library() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise EnvironmentFault("the tokenizers library is missing: pip install 'colosseum[train]'") from error
    return tokenizers
