"""Reads the end-of-document token from a tokenizer file without the tokenizer's library.

For an unknown token, a library returns the id of another one (SentencePiece: of ``<unk>``); for an ordinary token, an
id that also occurs in text. Documents would then end in the wrong places, or never.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from colosseum.errors import Fault, RefusedInput

MAX_BYTES = 1 << 28
"""Maximum size of a tokenizer file; the largest in use have 35 MB."""
_CONTROL, _USER_DEFINED = 3, 4
"""SentencePiece.Type of sentencepiece_model.proto: never encoded from text; encoded from the exact spelling only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """The tokens of a tokenizer file."""

    vocab_size: int
    """Largest id + 1."""
    special: dict[str, int]
    """Ids of the tokens that ordinary text never encodes to."""
    ordinary: frozenset[str]


def eod_id(kind: str, path: Path, eod: str) -> tuple[int, int]:
    """Vocabulary size and id of the end-of-document token.

    Args:
        kind: ``tokenizer_json`` or ``sentencepiece``.

    Raises:
        RefusedInput: the file cannot be read, or ``eod`` is not one of its special tokens.
    """
    found = read_json(path) if kind == "tokenizer_json" else read_sentencepiece(path)
    if eod in found.special:
        return found.vocab_size, found.special[eod]
    rule = f"{path} has no such token"
    if eod in found.ordinary:
        rule = f"is an ordinary token of {path}, which can occur in text: choose a special token"
    near = tuple(get_close_matches(eod, found.special, n=3, cutoff=0.3)) or tuple(found.special)[:5]
    raise RefusedInput([Fault(path="tokenizer.eod", value=eod, rule=rule, nearest=near)])


def read_json(path: Path) -> TokenFile:
    """Tokens of a tokenizer.json (Hugging Face tokenizers).

    Raises:
        RefusedInput: it is not such a file.
    """
    try:
        data = json.loads(_bytes(path))
        vocabulary = data["model"].get("vocab") or {}
        if isinstance(vocabulary, list):  # Unigram: [token, score]
            ids = {str(row[0]): number for number, row in enumerate(vocabulary)}
        else:
            ids = {str(token): int(number) for token, number in vocabulary.items()}
        added = {str(row["content"]): (int(row["id"]), bool(row["special"])) for row in data.get("added_tokens") or ()}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise RefusedInput(f"{path} is not a tokenizer.json: {type(error).__name__}: {str(error)[:200]}") from error
    special = {token: number for token, (number, is_special) in added.items() if is_special}
    every = [*ids.values(), *(number for number, _ in added.values())]
    return TokenFile(
        vocab_size=max(every, default=-1) + 1,
        special=special,
        ordinary=frozenset((ids.keys() | added.keys()) - special.keys()),
    )


def read_sentencepiece(path: Path) -> TokenFile:
    """Tokens of a SentencePiece .model: a ModelProto whose field 1 repeats {piece = 1, score = 2, type = 3}.

    https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto

    Raises:
        RefusedInput: it is not such a file.
    """
    special, ordinary, size = {}, set(), 0
    try:
        for number, value in _fields(_bytes(path)):
            if number != 1:
                continue
            piece = dict(_fields(value))
            name, kind = bytes(piece[1]).decode(), piece.get(3, 1)
            if kind in (_CONTROL, _USER_DEFINED):
                special[name] = size
            else:
                ordinary.add(name)
            size += 1
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise RefusedInput(f"{path} is not a SentencePiece model") from error
    if not size:
        raise RefusedInput(f"{path} is not a SentencePiece model: it contains no pieces")
    return TokenFile(vocab_size=size, special=special, ordinary=frozenset(ordinary))


def _bytes(path: Path) -> bytes:
    """Raises RefusedInput: it is not a regular file, or too large."""
    try:
        if not path.is_file():
            raise RefusedInput(f"the tokenizer file {path} does not exist")
        if path.stat().st_size > MAX_BYTES:
            raise RefusedInput(f"{path} is not a tokenizer: it has more than {MAX_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise RefusedInput(f"the tokenizer file {path} cannot be read: {error.strerror}") from error


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protobuf message (wire types 0 varint, 1 and 5 fixed, 2 bytes).

    Raises:
        ValueError, TypeError, IndexError: it is not a protobuf message.
    """
    view, at = memoryview(data), 0
    while at < len(view):
        key, at = _varint(view, at)
        wire = key & 7
        value: Any = None
        if wire == 0:
            value, at = _varint(view, at)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        elif wire == 2:
            length, at = _varint(view, at)
            value, at = view[at : at + length], at + length
        else:
            raise ValueError(f"wire type {wire}")
        if at > len(view):
            raise ValueError("truncated")
        yield key >> 3, value


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number with more than 64 bits")
