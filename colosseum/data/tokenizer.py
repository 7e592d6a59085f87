"""Reads tokenizer.json files, and trains them on local text without any hub.

Uses the ``tokenizers`` library (extra ``train``), which is imported only here and only when needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colosseum.atomic import write_whole
from colosseum.data.eod import eod_id
from colosseum.errors import INSTALL_TRAIN, ColosseumError, EnvironmentFault, Fault, RefusedInput
from colosseum.terminal import one_line

MIN_BYTE_VOCAB = 257
"""256 bytes and the end-of-document token: the smallest vocabulary that can encode any text."""
MAX_VOCAB = 1_000_000
"""Four times the largest in use; the trainer allocates memory for all of them before it reads any text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTokenizer:
    """Encodes text as token ids, with an end-of-document token."""

    vocab_size: int
    """Largest id + 1."""
    eod_id: int
    library: Any
    """The ``tokenizers.Tokenizer``."""


def load_tokenizer(path: Path, eod: str) -> TextTokenizer:
    """Reads a tokenizer.json.

    Raises:
        EnvironmentFault: the ``tokenizers`` library is missing.
        RefusedInput: the file is missing or broken, or ``eod`` is not one of its special tokens.
    """
    library = _library()
    size, end = eod_id("tokenizer_json", path, eod)
    with refusing(f"{path} is not a tokenizer.json"):
        tokenizer = library.Tokenizer.from_file(str(path))
        if tokenizer.token_to_id(eod) != end:
            raise RefusedInput([Fault(path="tokenizer.eod", value=eod, rule=f"it has two ids in {path}")])
    # A file may enable truncation and padding for inference; documents of a corpus must stay complete.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # "<|endoftext|>" inside a document is text, it must not end the document.
    tokenizer.encode_special_tokens = True
    return TextTokenizer(vocab_size=size, eod_id=end, library=tokenizer)


def train_tokenizer(texts: Iterable[str], path: Path, *, vocab_size: int, eod: str, force: bool = False) -> None:
    """Trains a byte-level BPE tokenizer (Sennrich et al. 2016; bytes as in GPT-2) and writes it to ``path`` atomically.

    The same texts give the same file.

    Raises:
        EnvironmentFault: the ``tokenizers`` library is missing, or ``path`` not writable.
        RefusedInput: ``path`` exists and ``force`` is false, or the vocabulary is too small for all bytes.
    """
    library = _library()
    if vocab_size < MIN_BYTE_VOCAB:
        rule = "must have 256 bytes and the end-of-document token"
        raise RefusedInput([Fault(path="vocabulary", value=vocab_size, rule=rule, nearest=(MIN_BYTE_VOCAB,))])
    if vocab_size > MAX_VOCAB:
        rule = f"must be at most {MAX_VOCAB:,}"
        raise RefusedInput([Fault(path="vocabulary", value=vocab_size, rule=rule, nearest=(MAX_VOCAB,))])
    if path.exists() and not force:
        raise RefusedInput(f"{path} exists; choose another tokenizer file, or replace it with --force")
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (tokenizer.to_str(pretty=True) + "\n").encode())
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turns any error of the library into a RefusedInput: it raises bare Exception, and panics are not Exceptions.

    A panic prints its trace to stderr by itself; stderr is discarded during the block.
    """
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    except (ColosseumError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise RefusedInput(f"{what}: {one_line(str(error), 200)}") from error
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _library() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise EnvironmentFault(f"the tokenizers library is missing; {INSTALL_TRAIN}") from error
    return tokenizers
